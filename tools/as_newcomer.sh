#!/usr/bin/env bash
# as_newcomer.sh COMMAND…: run it as on a machine where nothing was installed for us but Python and Java; with
# TIDELOG_WITHOUT_JAVA=1 only Python.
#
# Debian's database programs, libaio, the browser and Prometheus are hidden from the command: it has a mount
# namespace of its own, in which an overlay of /usr lacks the files of their packages. Nothing changes on the
# machine itself. If something is there that can not be hidden, this fails: else tests would meet Debian's
# servers, and nobody would see it.
set -euo pipefail

packages='^(mariadb-|libmariadb|mysql-|libmysqlclient|libaio1|chromium|prometheus)'
programs=(mariadbd mysqld mariadb mysql mariadb-binlog mysqlbinlog chromium chromium-browser prometheus promtool)
unset TIDELOG_MYSQLD
if [ -n "${TIDELOG_WITHOUT_JAVA-}" ]; then
  programs+=(java)
  unset JAVA_HOME
fi

present() {
  local program
  for program in "${programs[@]}"; do
    PATH="$PATH:/usr/sbin:/usr/bin:/usr/local/bin" type -P "$program" || true
  done
  compgen -G '/usr/lib/*/libaio.so.1*' || true
}

fail() {
  echo "as_newcomer.sh: $1. Hiding needs root, or sudo, mount namespaces and overlay file systems;" \
    "a machine without these programs needs none of it" >&2
  exit 1
}

# Within the namespace, as root: hide all, become UID and GID again.
if [ "${1-}" = --hidden-in ]; then
  scratch=$2 uid=$3 gid=$4
  shift 4
  mount -t tmpfs tmpfs "$scratch"
  mkdir "$scratch/upper" "$scratch/work"
  mount -t overlay overlay -o "lowerdir=/usr,upperdir=$scratch/upper,workdir=$scratch/work" /usr
  if [ -n "${TIDELOG_WITHOUT_JAVA-}" ] && [ -d /usr/lib/jvm ]; then
    mount -t tmpfs tmpfs /usr/lib/jvm
  fi
  # Whichever it asks is there or was never needed.
  mapfile -t installed < <(dpkg-query -W -f '${Package}\n' 2>/dev/null | grep -E "$packages" || true)
  if [ "${#installed[@]}" -gt 0 ]; then
    dpkg -L "${installed[@]}" | while read -r path; do
      case $path in /bin/* | /sbin/* | /lib*/*) path=/usr$path ;; esac # Debian's links into /usr
      if [[ $path == /usr/* && (-L $path || -f $path) ]]; then
        printf '%s\0' "$path"
      fi
    done | xargs -0r rm -f --
  fi
  left=$(present | xargs)
  [ -z "$left" ] || fail "still there: $left"
  export TIDELOG_NEWCOMER=1
  [ "$uid" -ne 0 ] || exec "$@"
  exec setpriv --reuid "$uid" --regid "$gid" --init-groups -- "$@"
fi

found=$(present | xargs)
[ -n "$found" ] || exec "$@"
echo "as_newcomer.sh: hides $found"
as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo env "PATH=$PATH" "HOME=$HOME" ${JAVA_HOME:+"JAVA_HOME=$JAVA_HOME"}
  ${TIDELOG_WITHOUT_JAVA:+"TIDELOG_WITHOUT_JAVA=1"})
"${as_root[@]}" unshare --mount true 2>/dev/null || fail "can not hide $found"
scratch=$(mktemp -d)
trap 'rmdir "$scratch"' EXIT
code=0
"${as_root[@]}" unshare --mount --propagation private bash "$0" \
  --hidden-in "$scratch" "$(id -u)" "$(id -g)" "$@" || code=$?
exit "$code"
