{{- define "spendhook.name" -}}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}{{ else if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "spendhook.selector" -}}
app.kubernetes.io/name: spendhook
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: daemon
{{- end }}

{{- define "spendhook.relaySelector" -}}
app.kubernetes.io/name: spendhook
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: relay
{{- end }}

{{- define "spendhook.labels" -}}
app.kubernetes.io/name: spendhook
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ default .Chart.AppVersion .Values.image.tag | trunc 63 | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "spendhook.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end }}

{{/* "true" if proxies terminate TLS. */}}
{{- define "spendhook.proxies" -}}
{{- with .Values.config.tls }}{{ if .trusted_proxies }}true{{ end }}{{ end }}
{{- end }}

{{/* What all pods have in common. */}}
{{- define "spendhook.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false # the processes would read their variables as settings
securityContext: {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{/* The probes of a container with an admin port. */}}
{{- define "spendhook.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: admin}
  {{- with .Values.probes.startup }}{{ toYaml . | nindent 2 }}{{ end }}
livenessProbe:
  httpGet: {path: /healthz, port: admin}
  {{- with .Values.probes.liveness }}{{ toYaml . | nindent 2 }}{{ end }}
readinessProbe:
  httpGet: {path: /readyz, port: admin}
  {{- with .Values.probes.readiness }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}

{{/* The strategy of a deployment: Recreate must not have the values of rolling updates, which are the default. */}}
{{- define "spendhook.strategy" -}}
{{- if eq (default "" .Values.strategy.type) "Recreate" }}type: Recreate{{ else }}{{ toYaml .Values.strategy }}{{ end }}
{{- end }}

{{/* The environment variable of Go's memory limit, for resources with one. */}}
{{- define "spendhook.memoryLimit" -}}
{{- with .limits }}
{{- if .memory }}
- name: GOMEMLIMIT # bytes: Go collects garbage more often when the process approaches its limit
  valueFrom: {resourceFieldRef: {resource: limits.memory}}
{{- end }}
{{- end }}
{{- end }}

{{/* Where the pods of a selector run. */}}
{{- define "spendhook.scheduling" -}}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .Values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range .Values.topologySpreadConstraints }}
  - {{- toYaml . | nindent 4 }}
    {{- if not .labelSelector }}
    labelSelector:
      matchLabels: {{- $.selector | nindent 8 }}
    {{- end }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Fails for values that the schema allows but the daemon cannot use. */}}
{{- define "spendhook.check" -}}
{{- if not (or .Values.redis.url .Values.redis.existingSecret) }}{{ fail "set redis.url or redis.existingSecret: the chart installs no Redis" }}{{ end }}
{{- if not (or .Values.storage.url .Values.storage.existingSecret) }}{{ fail "set storage.url or storage.existingSecret: replicas share a PostgreSQL, which the chart does not install" }}{{ end }}
{{- if not (or .Values.tls.existingSecret (include "spendhook.proxies" .)) }}{{ fail "set tls.existingSecret, or config.tls.trusted_proxies: the daemon serves nothing without mutual TLS" }}{{ end }}
{{- if and .Values.ingress.enabled (not .Values.ingress.hosts) }}{{ fail "set ingress.hosts" }}{{ end }}
{{- if and .Values.gateway.enabled (not (and .Values.gateway.parentRefs .Values.gateway.hostnames)) }}{{ fail "set gateway.parentRefs and gateway.hostnames" }}{{ end }}
{{- with .Values.relay }}
{{- if .enabled }}
{{- if not .config.url }}{{ fail "set relay.config.url: the address of the API, by a name in the daemon's certificate" }}{{ end }}
{{- if not .config.sources }}{{ fail "set relay.config.sources: a relay reads at least one source" }}{{ end }}
{{- if not .existingSecret }}{{ fail "set relay.existingSecret: the relay reads its token and other secrets from files" }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
