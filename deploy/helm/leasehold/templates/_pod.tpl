{{/* What the pods of brokers, of jobs and of tests have in common. */}}

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
The volumes with the configuration and the secrets. Takes a list: the root, the name of the ConfigMap, and the sections
whose files are needed; without those, all.
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

{{/* A volume's name has no dots and is short, so two secrets could get the same one. */}}
{{- define "leasehold.secretVolume" -}}
{{- if and (lt (len .) 57) (not (contains "." .)) }}secret-{{ . }}
{{- else }}secret-{{ replace "." "-" . | trunc 40 | trimSuffix "-" }}-{{ sha256sum . | trunc 8 }}
{{- end }}
{{- end }}

{{/* Takes a list: the root, and the sections. Whole directories: Kubernetes never updates a file that was mounted alone. */}}
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
A probe. Takes a list: the root, the service that is asked for, the times. Kubelet's own gRPC probe speaks no TLS, its
HTTPS probe shows no certificate; so with clients' certificates the image's own program asks.
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
