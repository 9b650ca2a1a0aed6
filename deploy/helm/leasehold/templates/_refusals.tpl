{{/* Contradictions between values. Each is rejected with a message that names the error and the remedy. */}}

{{- define "leasehold.refusals" -}}
{{- $v := .Values }}
{{- $url := include "leasehold.storeUrl" . }}
{{- $said := list }}

{{- if not $v.image.repository }}
{{- $said = append $said "image.repository is missing: there is no public image; build one with docker build --file deploy/docker/Dockerfile --tag REGISTRY/leasehold:TAG . in the project's folder, push it, and set image.registry=REGISTRY, image.repository=leasehold and image.tag=TAG" }}
{{- end }}
{{- if and $v.valkey.enabled $v.store.url }}
{{- $said = append $said "valkey.enabled and store.url name two stores: remove one" }}
{{- end }}
{{- if and (not $v.valkey.enabled) (not $v.store.url) }}
{{- $said = append $said "store.url is missing: set the URL of Redis, such as redis://redis.data:6379, or valkey.enabled for a trial" }}
{{- end }}
{{- if regexMatch "//[^/]*@" $url }}
{{- $said = append $said "store.url contains a user or a password, which would be readable in the ConfigMap: put them into a secret and name it in store.credentials" }}
{{- end }}
{{- if hasPrefix "redlock://" $url }}
{{- $nodes := regexFind "//[^/]+" $url | splitList "," | len }}
{{- if or (lt $nodes 3) (eq (mod $nodes 2) 0) }}
{{- $said = append $said (printf "store.url names %d servers for RedLock: it needs 3, 5 or 7" $nodes) }}
{{- end }}
{{- end }}
{{- if and (or (hasPrefix "redlock://" $url) (hasPrefix "redis-cluster://" $url)) (not $v.store.deploymentKey.existingSecret) }}
{{- $said = append $said "store.deploymentKey.existingSecret is missing: with Cluster and RedLock all brokers need the same key; create it with openssl rand -hex 32" }}
{{- end }}
{{- if and $v.store.deploymentKey.existingSecret (not $v.store.deploymentKey.key) }}
{{- $said = append $said "store.deploymentKey.key is missing: set the key of the secret" }}
{{- end }}
{{- with $v.store.credentials }}
{{- if and (or .sentinelUsernameKey .sentinelPasswordKey) (not (hasPrefix "redis-sentinel://" $url)) }}
{{- $said = append $said "store.credentials.sentinelUsernameKey and sentinelPasswordKey are for redis-sentinel:// only: remove them" }}
{{- end }}
{{- if and (or .usernameKey .sentinelUsernameKey .sentinelPasswordKey) (not .existingSecret) }}
{{- $said = append $said "store.credentials names keys, but no secret: set store.credentials.existingSecret" }}
{{- end }}
{{- end }}
{{- if and (or $v.store.tls.caSecret $v.store.tls.certSecret) (not (hasPrefix "rediss://" $url)) (not (dig "store" "tls" false $v.config)) }}
{{- $said = append $said "store.tls names certificates, but TLS for Redis is off: use rediss://, or config.store.tls: true" }}
{{- end }}

{{- range $section, $keys := include "leasehold.derived" . | fromJson }}
{{- range $key, $_ := $keys }}
{{- if hasKey (default dict (index $v.config $section)) $key }}
{{- $said = append $said (printf "config.%s.%s is set by the chart: remove it" $section $key) }}
{{- end }}
{{- end }}
{{- end }}
{{- range $section, $keys := $v.config }}
{{- range $key, $_ := $keys }}
{{- if and (hasSuffix "_file" $key) (not (hasKey (default dict (index (include "leasehold.derived" $ | fromJson) $section)) $key)) }}
{{- $said = append $said (printf "config.%s.%s names a file: name its secret in the values instead, and the chart mounts it" $section $key) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and (dig "server" "insecure" false $v.config) (include "leasehold.tls" .) }}
{{- $said = append $said "config.server.insecure with a certificate: remove it" }}
{{- end }}

{{- if and $v.tls.existingSecret $v.tls.certManager.enabled }}
{{- $said = append $said "tls.existingSecret and tls.certManager.enabled both provide a certificate: remove one" }}
{{- end }}
{{- if and $v.tls.certManager.enabled (not $v.tls.certManager.issuerRef.name) }}
{{- $said = append $said "tls.certManager.issuerRef.name is missing: set the name of the issuer" }}
{{- end }}
{{- if and $v.tls.clientCa.existingSecret (not (include "leasehold.tls" .)) }}
{{- $said = append $said "tls.clientCa without a certificate of the broker: set tls.existingSecret or tls.certManager.enabled" }}
{{- end }}
{{- if and $v.tls.clientCa.existingSecret (not $v.tls.probe.existingSecret) }}
{{- $said = append $said "tls.probe.existingSecret is missing: with tls.clientCa probes must present a certificate, too" }}
{{- end }}
{{- if and $v.tls.probe.existingSecret (not $v.tls.clientCa.existingSecret) }}
{{- $said = append $said "tls.probe.existingSecret is for tls.clientCa only: remove it" }}
{{- end }}

{{- $jwt := $v.access.jwt }}
{{- $hasKeys := or $jwt.keysUrl $jwt.keys.existingSecret }}
{{- if and $jwt.keysUrl $jwt.keys.existingSecret }}
{{- $said = append $said "access.jwt.keysUrl and access.jwt.keys.existingSecret both provide keys: remove one" }}
{{- end }}
{{- if and $hasKeys (or (not $jwt.issuer) (not $jwt.audience)) }}
{{- $said = append $said "access.jwt needs issuer and audience in addition to the keys" }}
{{- end }}
{{- if and (or $jwt.issuer $jwt.audience) (not $hasKeys) }}
{{- $said = append $said "access.jwt has no keys: set access.jwt.keysUrl or access.jwt.keys.existingSecret" }}
{{- end }}
{{- $isKnown := or $v.access.tokens.existingSecret $hasKeys $v.tls.clientCa.existingSecret }}
{{- if and $v.access.policy.existingSecret (not $isKnown) }}
{{- $said = append $said "access.policy without authentication: set access.tokens, access.jwt or tls.clientCa" }}
{{- end }}
{{- if and $isKnown (not $v.access.policy.existingSecret) }}
{{- $said = append $said "callers authenticate, but access.policy.existingSecret is missing: every request would be denied" }}
{{- end }}
{{- if and (or $v.access.tokens.existingSecret $hasKeys) (not (include "leasehold.tls" .)) }}
{{- $said = append $said "access.tokens and access.jwt without TLS would send credentials unencrypted: set tls.existingSecret or tls.certManager.enabled" }}
{{- end }}
{{- if not (or $v.access.policy.existingSecret $isKnown) }}
{{- $outside := list }}
{{- if $v.ingress.enabled }}{{ $outside = append $outside "ingress.enabled" }}{{ end }}
{{- if $v.route.enabled }}{{ $outside = append $outside "route.enabled" }}{{ end }}
{{- if ne $v.service.type "ClusterIP" }}{{ $outside = append $outside (printf "service.type: %s" $v.service.type) }}{{ end }}
{{- range $outside }}
{{- $said = append $said (printf "%s without access control would let any client outside the cluster acquire any lock: set access.policy, and access.tokens, access.jwt or tls.clientCa" .) }}
{{- end }}
{{- end }}
{{- if and $v.tracing.headers.existingSecret (not $v.tracing.otlpEndpoint) }}
{{- $said = append $said "tracing.headers without tracing.otlpEndpoint: nothing would be sent" }}
{{- end }}

{{- if and (not (kindIs "invalid" $v.terminationGracePeriodSeconds)) (le (int $v.terminationGracePeriodSeconds) (add (int $v.preStopSleepSeconds) (include "leasehold.drainSeconds" . | int) | int)) }}
{{- $said = append $said (printf "terminationGracePeriodSeconds is %d: a shutdown takes preStopSleepSeconds and config.server.drain_timeout, %d s together, and must not be interrupted" (int $v.terminationGracePeriodSeconds) (add (int $v.preStopSleepSeconds) (include "leasehold.drainSeconds" . | int))) }}
{{- end }}
{{- if and $v.autoscaling.enabled (gt (int $v.autoscaling.minReplicas) (int $v.autoscaling.maxReplicas)) }}
{{- $said = append $said "autoscaling.minReplicas is above autoscaling.maxReplicas" }}
{{- end }}
{{- if and $v.route.enabled (not $v.route.parentRefs) }}
{{- $said = append $said "route.parentRefs is missing: set the gateways of the GRPCRoute" }}
{{- end }}
{{- if and $v.route.backendTls.caConfigMap (not (and $v.route.enabled (include "leasehold.tls" .))) }}
{{- $said = append $said "route.backendTls needs route.enabled and a certificate of the broker" }}
{{- end }}
{{- if and $v.route.enabled (include "leasehold.tls" .) (not $v.route.backendTls.caConfigMap) }}
{{- $said = append $said "route.enabled with TLS at the broker: set route.backendTls.caConfigMap, otherwise gateways use plain HTTP/2" }}
{{- end }}
{{- if and $v.ingress.enabled (not $v.ingress.host) }}
{{- $said = append $said "ingress.host is missing: gRPC needs a separate host name" }}
{{- end }}
{{- if eq (int $v.service.port) (int $v.service.adminPort) }}
{{- $said = append $said "service.port and service.adminPort are the same: the admin port must differ from the port of the API" }}
{{- end }}
{{- if and $v.metrics.serviceMonitor.enabled $v.metrics.podMonitor.enabled }}
{{- $said = append $said "metrics.serviceMonitor and metrics.podMonitor would count everything twice: enable only one" }}
{{- end }}
{{- if and (or $v.metrics.serviceMonitor.enabled $v.metrics.podMonitor.enabled) (not (dig "metrics" "enabled" true $v.config)) }}
{{- $said = append $said "config.metrics.enabled is false: there is nothing for a monitor to scrape" }}
{{- end }}
{{- if and (or $v.metrics.serviceMonitor.enabled $v.metrics.podMonitor.enabled) $v.networkPolicy.enabled (not $v.networkPolicy.adminFrom) }}
{{- $said = append $said "networkPolicy.adminFrom is empty, so Prometheus could not reach the admin port: add its pods, such as [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]" }}
{{- end }}
{{- if and (or $v.metrics.serviceMonitor.enabled $v.metrics.podMonitor.enabled) (include "leasehold.tls" .) (not $v.metrics.serviceMonitor.tlsConfig) }}
{{- $said = append $said "metrics.serviceMonitor.tlsConfig is missing: Prometheus needs the certificate authority of the broker" }}
{{- end }}
{{- $names := list }}
{{- range $v.extraEnv }}
{{- if has .name $names }}
{{- $said = append $said (printf "extraEnv has %s twice, which server-side apply rejects: remove one" .name) }}
{{- end }}
{{- $names = append $names .name }}
{{- if has .name (list "LEASEHOLD__SERVER__LISTEN" "LEASEHOLD__SERVER__ADMIN_LISTEN" "LEASEHOLD__STORE__URL" "LEASEHOLD__SERVER__DRAIN_TIMEOUT") }}
{{- $said = append $said (printf "extraEnv has %s, which overrides a setting of the chart: remove it" .name) }}
{{- end }}
{{- if and (eq .name "OTEL_EXPORTER_OTLP_HEADERS") $v.tracing.headers.existingSecret }}
{{- $said = append $said "extraEnv has OTEL_EXPORTER_OTLP_HEADERS in addition to tracing.headers: remove one" }}
{{- end }}
{{- end }}
{{- range $v.extraArgs }}
{{- if regexMatch "^--(config|listen|admin-listen|store)(=|$)" . }}
{{- $said = append $said (printf "extraArgs has %s, which overrides a setting of the chart: remove it" .) }}
{{- end }}
{{- end }}
{{- range $key, $_ := $v.commonLabels }}
{{- if or (hasPrefix "app.kubernetes.io/" $key) (hasPrefix "helm.sh/" $key) (hasKey $v.podLabels $key) }}
{{- $said = append $said (printf "commonLabels has %s, which pods already have: remove it" $key) }}
{{- end }}
{{- end }}
{{- range $key, $_ := $v.podLabels }}
{{- if or (hasPrefix "app.kubernetes.io/" $key) (hasPrefix "helm.sh/" $key) }}
{{- $said = append $said (printf "podLabels has %s, which pods already have: remove it" $key) }}
{{- end }}
{{- end }}

{{- if or (hasKey $v.podAnnotations "checksum/config") (hasKey $v.commonAnnotations "checksum/config") }}
{{- $said = append $said "podAnnotations or commonAnnotations has checksum/config, by which pods are replaced when the configuration has changed: remove it" }}
{{- end }}

{{- if $said }}
{{- fail (printf "\n\nThe values are inconsistent:\n  * %s\n" (join "\n  * " $said)) }}
{{- end }}
{{- end }}
