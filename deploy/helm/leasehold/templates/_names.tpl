{{/* Names and labels of all objects. */}}

{{- define "leasehold.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* Short enough for suffixes such as -check-config. */}}
{{- define "leasehold.fullname" -}}
{{- $name := include "leasehold.name" . }}
{{- $both := printf "%s-%s" .Release.Name $name }}
{{- if contains $name .Release.Name }}{{ $both = .Release.Name }}{{ end }}
{{- default $both .Values.fullnameOverride | trunc 48 | trimSuffix "-" }}
{{- end }}

{{- define "leasehold.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride }}
{{- end }}

{{- define "leasehold.selector" -}}
app.kubernetes.io/name: {{ include "leasehold.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* The labels that select the pods of brokers only. They never change, because the selector of a Deployment cannot. */}}
{{- define "leasehold.brokers" -}}
{{ include "leasehold.selector" . }}
app.kubernetes.io/component: broker
{{- end }}

{{/* Argument: a list of the root and the component. */}}
{{- define "leasehold.labels" -}}
{{- $root := index . 0 -}}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{ include "leasehold.selector" $root }}
app.kubernetes.io/component: {{ index . 1 }}
app.kubernetes.io/part-of: leasehold
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The metadata of an object. Argument: a dict of root, component, suffix of the name, labels, annotations. */}}
{{- define "leasehold.metadata" -}}
{{- $annotations := merge dict (default dict .annotations) .root.Values.commonAnnotations -}}
name: {{ include "leasehold.fullname" .root }}{{ .suffix }}
namespace: {{ include "leasehold.namespace" .root }}
labels:
  {{- include "leasehold.labels" (list .root (default "broker" .component)) | nindent 2 }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "leasehold.image" -}}
{{- $image := .Values.image }}
{{- $registry := default $image.registry .Values.global.imageRegistry }}
{{- $name := $image.repository }}
{{- if $registry }}{{ $name = printf "%s/%s" $registry $image.repository }}{{ end }}
{{- if $image.digest }}{{ $name }}@{{ $image.digest }}{{ else }}{{ $name }}:{{ default .Chart.AppVersion $image.tag }}{{ end }}
{{- end }}

{{- define "leasehold.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "leasehold.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* The port of an http or https address. Similar text in the path or in an IPv6 address is not a port. */}}
{{- define "leasehold.portOf" -}}
{{- $url := urlParse . }}
{{- regexFind ":[0-9]+$" $url.host | trimPrefix ":" | default (ternary "443" "80" (eq $url.scheme "https")) }}
{{- end }}

{{/* The API's name in the cluster. */}}
{{- define "leasehold.host" -}}
{{ include "leasehold.fullname" . }}.{{ include "leasehold.namespace" . }}.svc
{{- end }}
