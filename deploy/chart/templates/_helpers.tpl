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
  - name: POD_NAME
    valueFrom: {fieldRef: {fieldPath: metadata.name}}
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

{{/* tidelog.yaml. What .Values.config says of the pipeline goes before what executors in pods need. */}}
{{- define "tidelog.config" -}}
{{- $config := deepCopy .Values.config }}
{{- if .Values.pipeline.executors }}
{{- $conf := include "tidelog.executors" . | fromYaml }}
{{- $master := printf "k8s://%s" .Values.pipeline.kubernetes }}
{{- $config = merge $config (dict "pipeline" (dict "master" $master "conf" $conf)) }}
{{- end }}
{{- toYaml $config }}
{{- end }}

{{/* The driver is in the pipeline's pod, which owns the executors' pods: they are deleted with it. */}}
{{- define "tidelog.executors" -}}
spark.driver.host: ${POD_IP}
spark.executor.instances: {{ .Values.pipeline.executors }}
spark.executor.cores: {{ .Values.pipeline.executor.cores }}
spark.executor.memory: {{ .Values.pipeline.executor.memory }}
spark.executor.memoryOverhead: {{ .Values.pipeline.executor.memoryOverhead }}
spark.kubernetes.namespace: {{ .Release.Namespace }}
spark.kubernetes.driver.pod.name: ${POD_NAME}
spark.kubernetes.executor.podTemplateFile: /etc/tidelog/executor.yaml
spark.kubernetes.authenticate.executor.serviceAccountName: {{ .Release.Name }}
spark.kubernetes.container.image: {{ .Values.image.pipeline }}
spark.kubernetes.container.image.pullPolicy: {{ .Values.image.pullPolicy }}
{{- with .Values.image.pullSecrets }}
spark.kubernetes.container.image.pullSecrets: {{ range $i, $each := . }}{{ if $i }},{{ end }}{{ $each.name }}{{ end }}
{{- end }}
{{- range $name, $value := .Values.env }}
spark.executorEnv.{{ $name }}: {{ $value | quote }}
{{- end }}
{{- end }}
