{{- define "tidelog.labels" -}}
app.kubernetes.io/name: tidelog
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "tidelog.capture" -}}
app.kubernetes.io/name: tidelog
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: capture
{{- end }}

{{- define "tidelog.pipeline" -}}
app.kubernetes.io/name: tidelog
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: pipeline
{{- end }}

{{- define "tidelog.port" -}}
{{ .Values.config.control.rest.port | default 8490 }}
{{- end }}

{{/* What pods of both kinds have in common. */}}
{{- define "tidelog.pod" -}}
serviceAccountName: {{ .Release.Name }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "tidelog.container" -}}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
env:
  - name: POD_IP
    valueFrom: {fieldRef: {fieldPath: status.podIP}}
  - {name: TIDELOG_LOG_FORMAT, value: json}
  - {name: TIDELOG_LOG_LEVEL, value: info}
  {{- range $name, $value := .Values.env }}
  - {name: {{ $name }}, value: {{ $value | quote }}}
  {{- end }}
envFrom:
  - secretRef: {name: {{ required "secretName: the Secret with the variables of the configuration" .Values.secretName }}}
volumeMounts:
  - {name: config, mountPath: /etc/tidelog, readOnly: true}
  - {name: tmp, mountPath: /tmp}
  - {name: home, mountPath: /var/lib/tidelog}
{{- end }}
