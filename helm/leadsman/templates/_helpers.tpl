{{- define "leadsman.name" -}}
{{ default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "leadsman.fullname" -}}
{{- $name := include "leadsman.name" . -}}
{{- if contains $name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{/* The name of one pool's pickers; takes the root and the pool. */}}
{{- define "leadsman.picker" -}}
{{- $name := printf "%s-%s" (include "leadsman.fullname" (index . 0)) (index . 1).name -}}
{{- if gt (len $name) 63 }}
{{- fail (printf "pools[%s].name: %s would be longer than 63 letters: shorten it, or the release's name" (index . 1).name $name) }}
{{- end }}
{{- $name }}
{{- end }}

{{- define "leadsman.labels" -}}
app.kubernetes.io/name: {{ include "leadsman.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "leadsman.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end }}

{{/* Who a pod is, for selectors; takes the root and the component. */}}
{{- define "leadsman.selector" -}}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "leadsman.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "leadsman.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Where Redis is, for a container's environment; nothing where state travels by gRPC. */}}
{{- define "leadsman.redisUrl" -}}
{{- if eq .Values.state.backend "redis" }}
{{- $redis := .Values.state.redis }}
{{- if not (or $redis.url $redis.secret) }}
{{- fail "state.backend is redis: state.redis.url or state.redis.secret has to say where it is" }}
{{- end }}
- name: LEADSMAN_REDIS_URL
  valueFrom:
    secretKeyRef:
      name: {{ default (include "leadsman.fullname" .) $redis.secret }}
      key: {{ ternary "url" "redis-url" (ne $redis.secret "") }}
{{- end }}
{{- end }}

{{/* Where every pod of ours may go: DNS, pods, Redis. */}}
{{- define "leadsman.egress" -}}
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
- to: [{namespaceSelector: {}}]
{{- if eq .Values.state.backend "redis" }}
- ports: [{port: {{ .Values.state.redis.port }}, protocol: TCP}]
{{- end }}
{{- end }}

{{/* Where pickers send their spans, which need not be a pod. */}}
{{- define "leadsman.egressOfSpans" -}}
{{- with .Values.tracing.endpoint }}
{{- $url := urlParse . }}
{{- $port := regexFind "[0-9]+$" (regexFind ":[0-9]+$" $url.host) }}
- ports: [{port: {{ default (ternary "443" "80" (eq $url.scheme "https")) $port }}, protocol: TCP}]
{{- end }}
{{- end }}

{{/* Replicas spread over nodes, where that can be had. */}}
{{- define "leadsman.spread" -}}
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels: {{- include "leadsman.selector" . | nindent 6 }}
{{- end }}

{{/* The secret that names block keys: given, or kept, or drawn. */}}
{{- define "leadsman.secret" -}}
{{- $kept := lookup "v1" "Secret" .Release.Namespace (include "leadsman.fullname" .) -}}
{{- if .Values.secret }}{{ .Values.secret | b64enc }}
{{- else if $kept }}{{ index $kept.data "secret" }}
{{- else }}{{ randAlphaNum 32 | b64enc }}{{ end }}
{{- end }}

{{/* How pickers are spoken to: self-signed, off, or the name of a secret. What the gateway in front
cannot speak is refused here, since each request would get a 500. */}}
{{- define "leadsman.tls" -}}
{{- $kind := .Values.gateway.kind }}
{{- $plain := has $kind (list "envoy-gateway" "standalone") }}
{{- $tls := .Values.pickers.tls | replace "auto" (ternary "off" "self-signed" $plain) }}
{{- if and (eq $kind "standalone") (ne $tls "off") }}
{{- fail "pickers.tls: a standalone Envoy meets its picker on the loopback: leave it auto, or off" }}
{{- else if and (eq $kind "envoy-gateway") (eq $tls "self-signed") }}
{{- fail "pickers.tls: Envoy Gateway verifies certificates: set off, or a secret for which there is a BackendTLSPolicy" }}
{{- else if and (has $kind (list "envoy-ai-gateway" "agentgateway")) (eq $tls "off") }}
{{- fail (printf "pickers.tls: %s speaks TLS to pickers, always: set self-signed, or a secret" $kind) }}
{{- end }}
{{- $tls }}
{{- end }}

{{/* Takes the pool's name, and how its pickers serve: a standalone Envoy gives up on a picker that
takes longer than the message_timeout in files/envoy.yaml. */}}
{{- define "leadsman.checkPatience" -}}
{{- $picker := index . 1 }}
{{- $longest := addf (default 1.0 $picker.decision_deadline) (default 3.5 $picker.longest_hold) }}
{{- if ge $longest 5.0 }}
{{- fail (printf "pools[%s].config.picker: decision_deadline + longest_hold are %v s, and a standalone Envoy waits 5 s" (index . 0) $longest) }}
{{- end }}
{{- end }}

{{/* Envoy's own limit is 1024 open requests, and 500 for the next one. */}}
{{- define "leadsman.noLimits" -}}
maxConnections: 100000
maxPendingRequests: 100000
maxParallelRequests: 100000
{{- end }}
