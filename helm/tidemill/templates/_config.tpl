{{/* The operator's configuration file. */}}
{{- define "tidemill.config" -}}
images:
  conductor: {{ include "tidemill.image" (list . .Values.images.conductor) | quote }}
  cell: {{ include "tidemill.image" (list . .Values.images.cell) | quote }}
  sandbox: {{ include "tidemill.image" (list . .Values.images.sandbox) | quote }}
imagePullPolicy: {{ .Values.imagePullPolicy }}
imagePullSecrets: {{ .Values.imagePullSecrets | toJson }}
namespaces: {{ include "tidemill.namespaces" . }}
operatorNamespace: {{ .Release.Namespace }}
operatorServiceAccount: {{ include "tidemill.serviceAccount" . }}
lease:
  name: {{ include "tidemill.name" . }}
  durationSeconds: {{ .Values.lease.durationSeconds }}
  renewSeconds: {{ .Values.lease.renewSeconds }}
  retrySeconds: {{ .Values.lease.retrySeconds }}
healthPort: 8080
metricsPort: 8081
metricsFrom: {{ .Values.metricsFrom | toJson }}
nodeLossSeconds: {{ .Values.nodeLossSeconds }}
placementSeconds: {{ .Values.placementSeconds }}
networkProfiles:
  {{- toYaml .Values.networkProfiles | nindent 2 }}
defaults:
  terminationGracePeriodSeconds: {{ .Values.defaults.terminationGracePeriodSeconds }}
development: {{ .Values.development }}
{{- end }}
