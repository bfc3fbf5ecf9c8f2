{{/* Names, labels and small pieces that all templates share. */}}

{{- define "dpdist.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "dpdist.fullname" -}}
{{- $name := include "dpdist.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "dpdist.selector" -}}
app.kubernetes.io/name: {{ include "dpdist.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "dpdist.labels" -}}
{{ include "dpdist.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: dpdist
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* (root, component): labels by which policies and disruption budgets find pods, of all components where it is empty.
Nobody else writes them: a Prefect worker sets app.kubernetes.io/name of the jobs that it makes. */}}
{{- define "dpdist.pods" -}}
dpdist/instance: {{ include "dpdist.fullname" (index . 0) | quote }}
{{- with index . 1 }}
dpdist/component: {{ . }}
{{- end }}
{{- end }}

{{/* (root, component): labels of a pod */}}
{{- define "dpdist.podLabels" -}}
{{- $root := index . 0 }}
{{- include "dpdist.selector" $root }}
app.kubernetes.io/component: {{ index . 1 }}
{{ include "dpdist.pods" . }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Annotations of every pod: what it is started again for. */}}
{{- define "dpdist.podAnnotations" -}}
dpdist/secrets-generation: {{ .Values.secrets.generation | quote }}
cluster-autoscaler.kubernetes.io/safe-to-evict: "false"
karpenter.sh/do-not-disrupt: "true"
{{- include "dpdist.ownAnnotations" . }}
{{- end }}

{{/* Annotations of the values, without the chart's own names. */}}
{{- define "dpdist.ownAnnotations" }}
{{- range $name, $text := omit .Values.podAnnotations "dpdist/secrets-generation" "cluster-autoscaler.kubernetes.io/safe-to-evict" "karpenter.sh/do-not-disrupt" "checksum/spec" "checksum/template" }}
{{ $name }}: {{ $text | quote }}
{{- end }}
{{- end }}

{{- define "dpdist.image" -}}
{{- $image := .Values.image }}
{{- if $image.digest }}
{{- printf "%s@%s" $image.repository $image.digest }}
{{- else }}
{{- printf "%s:%s" $image.repository (default .Chart.AppVersion $image.tag) }}
{{- end }}
{{- end }}

{{- define "dpdist.configMap" -}}
{{- default (printf "%s-spec" (include "dpdist.fullname" .)) .Values.release.existingConfigMap }}
{{- end }}

{{- define "dpdist.scheduler" -}}
{{- printf "%s-scheduler" (include "dpdist.fullname" .) }}
{{- end }}

{{/* Name of the Dask cluster. The operator changes nothing of a cluster that runs but the number of its workers, and takes
workers away only through the scheduler's dashboard, which is closed: what changes its pods makes another cluster. */}}
{{- define "dpdist.cluster" -}}
{{- $name := include "dpdist.fullname" . }}
{{- if eq .Values.dask.mode "operator" }}
{{- $workers := omit .Values.dask.workers "disruptionBudget" "autoscaling" }}
{{- $scheduler := omit .Values.dask.scheduler "disruptionBudget" }}
{{- $secrets := pick .Values.secrets "generation" "kek" "storage" "tls" }}
{{- $rest := list (include "dpdist.image" .) .Values.image.pullPolicy .Values.imagePullSecrets .Values.commonLabels .Values.extraVolumes .Values.storage .Values.trust .Values.proxy .Values.openshift .Values.priorityClassName }}
{{- $hash := list .Chart.Version $workers .Values.dask.groups $scheduler $secrets $rest | toJson | sha256sum | trunc 6 }}
{{- $name = printf "%s-%s" ($name | trunc 33 | trimSuffix "-") $hash }}
{{- end }}
{{- $name }}
{{- end }}

{{- define "dpdist.address" -}}
{{- if eq .Values.dask.mode "external" }}
{{- .Values.dask.address }}
{{- else }}
{{- printf "tls://%s-scheduler:8786" (include "dpdist.cluster" .) }}
{{- end }}
{{- end }}

{{/* Work pool and deployment at the Prefect server: one of each for each release, unless they are named. */}}
{{- define "dpdist.workPool" -}}
{{- default (printf "%s-%s" .Release.Namespace (include "dpdist.fullname" .)) .Values.prefect.workPool }}
{{- end }}

{{- define "dpdist.deployment" -}}
{{- default (printf "%s-%s" .Release.Namespace (include "dpdist.fullname" .)) .Values.prefect.deployment }}
{{- end }}

{{/* The flow of this release: flows/federated.py shows who took part. */}}
{{- define "dpdist.flow" -}}
{{- $spec := dict }}
{{- if .Values.release.spec }}{{ $spec = fromYaml .Values.release.spec }}{{ end }}
{{- ternary "federated" "release" (kindIs "map" (get $spec "federated")) }}
{{- end }}

{{/* Whether the chart brings workers: "true" or nothing. */}}
{{- define "dpdist.hasWorkers" -}}
{{- if or (ne .Values.dask.mode "external") (eq .Values.mode "workers") }}true{{ end }}
{{- end }}

{{/* Workers that a release waits for. */}}
{{- define "dpdist.workerCount" -}}
{{- $count := int .Values.dask.workers.replicas }}
{{- if .Values.dask.workers.autoscaling.enabled }}
{{- $count = int .Values.dask.workers.autoscaling.minimum }}
{{- end }}
{{- range .Values.dask.groups }}
{{- $count = add $count (int .replicas) }}
{{- end }}
{{- $count = add $count (int .Values.dask.joining) }}
{{- $count }}
{{- end }}

{{/* (prefix, mapping): settings by dotted path, one --set a line, values as JSON, which is YAML. */}}
{{- define "dpdist.flatten" -}}
{{- $prefix := index . 0 }}
{{- range $key, $value := index . 1 }}
{{- $path := ternary $key (printf "%s.%s" $prefix $key) (eq $prefix "") }}
{{- if kindIs "map" $value }}
{{- include "dpdist.flatten" (list $path $value) }}
{{- else }}
{{ printf "%s=%s" $path (toJson $value) }}
{{- end }}
{{- end }}
{{- end }}

{{/* The settings that the chart adds to those of the spec: where the cluster is, and what the values say. */}}
{{- define "dpdist.settings" -}}
{{- $cluster := dict "mode" "address" "address" (include "dpdist.address" .) "timeout" .Values.dask.timeout }}
{{- if ne .Values.dask.mode "external" }}
{{- $_ := set $cluster "workers" (include "dpdist.workerCount" . | int) }}
{{- end }}
{{- $files := dict "ca" "/run/secrets/dpdist/ca.pem" "cert" "/run/secrets/dpdist/cert.pem" "key" "/run/secrets/dpdist/key.pem" }}
{{- $_ := set $cluster "security" $files }}
{{- $settings := dict "cluster" $cluster }}
{{- if .Values.release.schema }}
{{- $_ := set $settings "schema" "schema.yaml" }}
{{- end }}
{{- if .Values.secrets.signing.existingSecret }}
{{- $_ := set $settings "output" (dict "signing_key" "/run/secrets/dpdist/signing.pem") }}
{{- end }}
{{- mergeOverwrite (deepCopy .Values.release.settings) $settings | toJson }}
{{- end }}

{{/* Hash of the spec, for annotations: a pod that read another spec is another pod. */}}
{{- define "dpdist.checksum" -}}
{{- printf "%s\n%s" .Values.release.spec .Values.release.schema | sha256sum }}
{{- end }}

{{/* All groups of workers, the common one first (mode workers has none): [{name, group, workers}]. */}}
{{- define "dpdist.groups" -}}
{{- $root := . }}
{{- $fullname := include "dpdist.fullname" . }}
{{- $common := include "dpdist.group" (list . .Values.dask.workers) | fromJson }}
{{- $groups := list }}
{{- if ne .Values.mode "workers" }}
{{- $groups = append $groups (dict "name" (printf "%s-workers" $fullname) "group" "workers" "workers" $common) }}
{{- end }}
{{- range .Values.dask.groups }}
{{- $workers := include "dpdist.group" (list $root .) | fromJson }}
{{- $groups = append $groups (dict "name" (printf "%s-%s" $fullname .name) "group" .name "workers" $workers) }}
{{- end }}
{{- toJson $groups }}
{{- end }}
