{{- define "tidemill.name" -}}
{{- .Values.nameOverride | default (printf "%s-operator" .Release.Name) | trunc 52 | trimSuffix "-" -}}
{{- end }}

{{- define "tidemill.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "tidemill.name" .) -}}
{{- end }}

{{- define "tidemill.selector" -}}
app.kubernetes.io/name: tidemill
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "tidemill.labels" -}}
{{ include "tidemill.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* One image: (list $ name). The registry before it, the appVersion behind a name that has neither tag nor digest. */}}
{{- define "tidemill.image" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{- if not (or (contains "@" $name) (contains ":" (last (splitList "/" $name)))) -}}
{{- $name = printf "%s:%s" $name $root.Chart.AppVersion -}}
{{- end -}}
{{- with $root.Values.imageRegistry }}{{ trimSuffix "/" . }}/{{ end }}{{ $name -}}
{{- end }}

{{/* Namespaces whose jobs are served, as a JSON list; empty: all. */}}
{{- define "tidemill.namespaces" -}}
{{- if .Values.singleNamespace -}}
{{- list .Release.Namespace | toJson -}}
{{- else -}}
{{- .Values.namespaces | toJson -}}
{{- end -}}
{{- end }}
