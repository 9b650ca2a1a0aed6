{{/* Common parts of the pods of brokers, jobs and tests. */}}

{{- define "leasehold.podSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false
serviceAccountName: {{ include "leasehold.serviceAccount" . }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "leasehold.containerSecurity" -}}
image: {{ include "leasehold.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  privileged: false
  capabilities:
    drop: [ALL]
{{- end }}

{{/*
The volumes with the configuration and the secrets. Argument: a list of the root, the name of the ConfigMap, and the
sections whose files are needed; all files without sections.
*/}}
{{- define "leasehold.volumes" -}}
{{- $root := index . 0 -}}
- name: config
  configMap:
    name: {{ index . 1 }}
{{- $keys := dict }}
{{- range include "leasehold.filesOf" (list $root (slice . 2)) | fromJsonArray }}
{{- $_ := set $keys .secret (append (default list (index $keys .secret)) .key) }}
{{- end }}
{{- range $secret, $names := $keys }}
- name: {{ include "leasehold.secretVolume" $secret }}
  secret:
    secretName: {{ $secret }}
    defaultMode: 0440
    items:
      {{- range uniq $names }}
      - {key: {{ . | quote }}, path: {{ . | quote }}}
      {{- end }}
{{- end }}
{{- end }}

{{/* The name of a volume is short and has no dots, so a hash keeps the names of two secrets different. */}}
{{- define "leasehold.secretVolume" -}}
{{- if and (lt (len .) 57) (not (contains "." .)) }}secret-{{ . }}
{{- else }}secret-{{ replace "." "-" . | trunc 40 | trimSuffix "-" }}-{{ sha256sum . | trunc 8 }}
{{- end }}
{{- end }}

{{/* Argument: a list of the root and the sections. Mounts directories, because Kubernetes never updates single files. */}}
{{- define "leasehold.mounts" -}}
- name: config
  mountPath: /etc/leasehold/config
  readOnly: true
{{- $secrets := list }}
{{- range include "leasehold.filesOf" (list (index . 0) (slice . 1)) | fromJsonArray }}{{ $secrets = append $secrets .secret }}{{ end }}
{{- range uniq $secrets | sortAlpha }}
- name: {{ include "leasehold.secretVolume" . }}
  mountPath: /etc/leasehold/secrets/{{ . }}
  readOnly: true
{{- end }}
{{- end }}

{{- define "leasehold.filesOf" -}}
{{- $sections := index . 1 }}
{{- $files := list }}
{{- range include "leasehold.files" (index . 0) | fromJsonArray }}
{{- if or (not $sections) (has .section $sections) }}{{ $files = append $files . }}{{ end }}
{{- end }}
{{- toJson $files }}
{{- end }}

{{/*
A probe. Argument: a list of the root, the service to check, the times. The gRPC probe of kubelet does not support TLS,
and its HTTPS probe presents no certificate; with client certificates the probe runs the program of the image.
*/}}
{{- define "leasehold.probe" -}}
{{- $root := index . 0 }}
{{- $service := index . 1 }}
{{- if $root.Values.tls.clientCa.existingSecret }}
exec:
  command:
    - /usr/local/bin/leasehold
    - ping
    - --service={{ $service }}
    - --endpoint=https://{{ default (include "leasehold.host" $root) $root.Values.tls.probe.serverName }}:7071
    - --ca-file=/etc/leasehold/probe/ca.crt
    - --cert-file=/etc/leasehold/probe/tls.crt
    - --key-file=/etc/leasehold/probe/tls.key
{{- else if include "leasehold.tls" $root }}
httpGet:
  scheme: HTTPS
  port: 7071
  path: {{ ternary "/livez" "/readyz" (eq $service "liveness") }}
{{- else }}
grpc:
  port: 7071
  service: {{ $service }}
{{- end }}
{{ toYaml (index . 2) }}
{{- end }}
