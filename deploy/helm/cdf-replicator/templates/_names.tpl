{{- define "cdf.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" }}{{ end -}}
{{- end }}

{{- define "cdf.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "cdf.role" -}}
cdf-replicator/role
{{- end }}

{{- define "cdf.labels" -}}
{{ include "cdf.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "cdf.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "cdf.sparkConf" -}}
{{- $conf := dict -}}
{{- if .Values.sparkOnKubernetes.enabled -}}
{{- $conf = dict
      "spark.kubernetes.namespace" .Release.Namespace
      "spark.kubernetes.container.image" (include "cdf.image" .)
      "spark.kubernetes.container.image.pullPolicy" (.Values.image.pullPolicy | default "IfNotPresent")
      "spark.kubernetes.authenticate.driver.serviceAccountName" (include "cdf.name" .)
      "spark.kubernetes.authenticate.executor.serviceAccountName" (include "cdf.name" .)
      "spark.executor.memoryOverhead" "768m"
      "spark.executor.instances" (.Values.sparkOnKubernetes.executors | toString)
      "spark.driver.host" "$(POD_IP)"
      "spark.driver.bindAddress" "0.0.0.0"
      "spark.kubernetes.driver.pod.name" "$(POD_NAME)"
      "spark.kubernetes.driver.service.deleteOnTermination" "false" -}}
{{- $secrets := list -}}
{{- range .Values.imagePullSecrets }}{{ $secrets = append $secrets .name }}{{ end -}}
{{- if $secrets }}{{ $_ := set $conf "spark.kubernetes.container.image.pullSecrets" ($secrets | join ",") }}{{ end -}}
{{- end -}}
{{- merge (deepCopy .Values.sparkConf) $conf | toJson -}}
{{- end }}
