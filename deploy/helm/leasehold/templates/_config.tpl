{{/* The broker's configuration: the settings of the user, and those that other values determine. */}}

{{/* "true" if the broker uses TLS. */}}
{{- define "leasehold.tls" -}}
{{- if or .Values.tls.existingSecret .Values.tls.certManager.enabled }}true{{ end }}
{{- end }}

{{- define "leasehold.tlsSecret" -}}
{{- default (printf "%s-tls" (include "leasehold.fullname" .)) .Values.tls.existingSecret }}
{{- end }}

{{- define "leasehold.storeUrl" -}}
{{- /* The name and namespace of the service of that chart. */ -}}
{{- if .Values.valkey.enabled }}redis://{{ .Release.Name }}{{ if not (contains "valkey" .Release.Name) }}-valkey{{ end }}.{{ .Release.Namespace }}.svc:6379{{ else }}{{ .Values.store.url }}{{ end }}
{{- end }}

{{/*
The files of the broker, as a JSON list of dicts: section and setting, secret and key.
*/}}
{{- define "leasehold.files" -}}
{{- $files := list }}
{{- $v := .Values }}
{{- $add := list
  (list "store" "username_file" $v.store.credentials.existingSecret $v.store.credentials.usernameKey)
  (list "store" "password_file" $v.store.credentials.existingSecret $v.store.credentials.passwordKey)
  (list "store" "sentinel_username_file" $v.store.credentials.existingSecret $v.store.credentials.sentinelUsernameKey)
  (list "store" "sentinel_password_file" $v.store.credentials.existingSecret $v.store.credentials.sentinelPasswordKey)
  (list "store" "tls_ca_file" $v.store.tls.caSecret $v.store.tls.caKey)
  (list "store" "tls_cert_file" $v.store.tls.certSecret "tls.crt")
  (list "store" "tls_key_file" $v.store.tls.certSecret "tls.key")
  (list "store" "deployment_key_file" $v.store.deploymentKey.existingSecret $v.store.deploymentKey.key)
  (list "tls" "client_ca_file" $v.tls.clientCa.existingSecret $v.tls.clientCa.key)
  (list "authentication" "tokens_file" $v.access.tokens.existingSecret $v.access.tokens.key)
  (list "authentication" "jwt_keys_file" $v.access.jwt.keys.existingSecret $v.access.jwt.keys.key)
  (list "authorization" "policy_file" $v.access.policy.existingSecret $v.access.policy.key)
}}
{{- if include "leasehold.tls" . }}
{{- $secret := include "leasehold.tlsSecret" . }}
{{- $add = concat $add (list (list "tls" "cert_file" $secret "tls.crt") (list "tls" "key_file" $secret "tls.key")) }}
{{- end }}
{{- range $add }}
{{- if and (index . 2) (index . 3) }}
{{- $files = append $files (dict "section" (index . 0) "setting" (index . 1) "secret" (index . 2) "key" (index . 3)) }}
{{- end }}
{{- end }}
{{- toJson $files }}
{{- end }}

{{/* The settings that the chart determines, as JSON. */}}
{{- define "leasehold.derived" -}}
{{- $set := dict
  "server" (dict "listen" "0.0.0.0:7070" "admin_listen" "0.0.0.0:7071")
  "store" (dict "url" (include "leasehold.storeUrl" .))
}}
{{- if not (include "leasehold.tls" .) }}{{ $_ := set $set.server "insecure" true }}{{ end }}
{{- with .Values.adminHosts }}{{ $_ := set $set.server "admin_hosts" (join "," .) }}{{ end }}
{{- if .Values.valkey.enabled }}{{ $_ := set $set.store "wait_for_store" true }}{{ end }}
{{- range include "leasehold.files" . | fromJsonArray }}
{{- $section := default dict (index $set .section) }}
{{- $_ := set $section .setting (printf "/etc/leasehold/secrets/%s/%s" .secret .key) }}
{{- $_ := set $set .section $section }}
{{- end }}
{{- $jwt := dict "jwt_issuer" .Values.access.jwt.issuer "jwt_audience" .Values.access.jwt.audience "jwt_keys_url" .Values.access.jwt.keysUrl }}
{{- range $key, $value := $jwt }}
{{- if $value }}
{{- $section := default dict (index $set "authentication") }}
{{- $_ := set $section $key $value }}
{{- $_ := set $set "authentication" $section }}
{{- end }}
{{- end }}
{{- with .Values.tracing.otlpEndpoint }}{{ $_ := set $set "tracing" (dict "otlp_endpoint" .) }}{{ end }}
{{- toJson $set }}
{{- end }}

{{/* All settings, as JSON. */}}
{{- define "leasehold.settings" -}}
{{- mustMergeOverwrite (deepCopy .Values.config) (include "leasehold.derived" . | fromJson) | toJson }}
{{- end }}

{{/* The configuration file for settings in JSON. YAML numbers are floats, but TOML distinguishes 1000 from 1000.0. */}}
{{- define "leasehold.toml" -}}
{{- range $section, $keys := fromJson . }}
[{{ $section }}]
{{- range $key, $value := $keys }}
{{- if kindIs "float64" $value }}
{{ $key }} = {{ if eq (float64 (int64 $value)) $value }}{{ int64 $value }}{{ else }}{{ $value }}{{ end }}
{{- else }}
{{ $key }} = {{ toJson $value }}
{{- end }}
{{- end }}
{{ end }}
{{- end }}

{{/* The settings of the store. The job that writes the first era needs no others, and certificates may not exist yet. */}}
{{- define "leasehold.storeSettings" -}}
{{- pick (include "leasehold.settings" . | fromJson) "store" "limits" | toJson }}
{{- end }}

{{/* The settings that need a restart: a change of these replaces the pods. */}}
{{- define "leasehold.restarting" -}}
{{- $settings := include "leasehold.settings" . | fromJson }}
{{- $_ := unset $settings "quotas" }}
{{- with $settings.limits }}{{ $_ := unset . "ttl_min" }}{{ $_ := unset . "ttl_default" }}{{ $_ := unset . "wait_max" }}{{ $_ := unset . "max_hold_max" }}{{ $_ := unset . "at_least_max" }}{{ end }}
{{- with $settings.server }}{{ $_ := unset . "drain_timeout" }}{{ end }}
{{- with $settings.log }}{{ $_ := unset . "filter" }}{{ end }}
{{- range $section, $keys := $settings }}
{{- if not $keys }}{{ $_ := unset $settings $section }}{{ end }}
{{- end }}
{{- toJson $settings }}
{{- end }}

{{/* Converts a time of the configuration, such as 1m 30s, to whole seconds, rounded up. */}}
{{- define "leasehold.seconds" -}}
{{- $ms := 0 }}
{{- range regexFindAll "[0-9]+ *[a-zA-Zµ]+" . -1 }}
{{- $number := regexFind "[0-9]+" . | atoi }}
{{- $unit := regexFind "[a-zA-Zµ]+" . }}
{{- $scale := dict "ms" 1 "msec" 1 "s" 1000 "sec" 1000 "second" 1000 "seconds" 1000 "m" 60000 "min" 60000 "minute" 60000 "minutes" 60000 "h" 3600000 "hr" 3600000 "hour" 3600000 "hours" 3600000 }}
{{- if not (hasKey $scale $unit) }}{{ fail (printf "config.server.drain_timeout: the unit must be h, m, s or ms, not %q" .) }}{{ end }}
{{- $ms = add $ms (mul $number (index $scale $unit)) }}
{{- end }}
{{- div (add $ms 999) 1000 }}
{{- end }}

{{- define "leasehold.drainSeconds" -}}
{{- include "leasehold.seconds" (dig "server" "drain_timeout" "10s" .Values.config) }}
{{- end }}

{{- define "leasehold.graceSeconds" -}}
{{- $needed := add .Values.preStopSleepSeconds (include "leasehold.drainSeconds" . | int) 5 }}
{{- if kindIs "invalid" .Values.terminationGracePeriodSeconds }}{{ $needed }}{{ else }}{{ int .Values.terminationGracePeriodSeconds }}{{ end }}
{{- end }}
