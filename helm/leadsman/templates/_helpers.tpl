{{- define "leadsman.name" -}}
{{ default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "leadsman.fullname" -}}
{{- $name := include "leadsman.name" . -}}
{{- if contains $name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}{{ end }}
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
