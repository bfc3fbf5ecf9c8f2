{{/* Settings that contradict each other. Each failure says what to do. All are collected, so one run shows them all. */}}
{{- define "dpdist.validate" -}}
{{- $v := .Values }}
{{- $problems := list }}
{{- $spec := dict }}

{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" (include "dpdist.fullname" .)) }}
{{- $problems = append $problems (printf "names of objects would begin with %q, which Kubernetes refuses (a small letter, then small letters, digits and -): --set fullnameOverride=NAME" (include "dpdist.fullname" .)) }}
{{- end }}
{{- range $label, $_ := $v.commonLabels }}
{{- if or (has $label (list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/version" "app.kubernetes.io/managed-by" "app.kubernetes.io/part-of" "app.kubernetes.io/component" "helm.sh/chart")) (hasPrefix "dpdist/" $label) (hasPrefix "dask.org/" $label) }}
{{- $problems = append $problems (printf "commonLabels.%s would replace the chart's own label, by which pods and network policies are found: choose another name" $label) }}
{{- end }}
{{- end }}
{{- if not $v.image.repository }}
{{- $problems = append $problems "image.repository is empty: build deploy/Dockerfile, push it to your registry and name it (--set image.repository=registry.example/dpdist)" }}
{{- end }}
{{- if and $v.image.digest $v.image.tag }}
{{- $problems = append $problems "image.tag and image.digest are both set: the digest decides, so drop the tag" }}
{{- end }}

{{- if eq $v.mode "workers" }}
{{- if or $v.release.spec $v.release.schema $v.release.existingConfigMap $v.release.settings }}
{{- $problems = append $problems "mode is workers, which release nothing: drop release.*; the spec is given where the scheduler is" }}
{{- end }}
{{- else if and $v.release.spec $v.release.existingConfigMap }}
{{- $problems = append $problems "release.spec and release.existingConfigMap are both set: give the spec as text or by ConfigMap, not both" }}
{{- else if not (or $v.release.spec $v.release.existingConfigMap) }}
{{- $problems = append $problems "there is no spec: --set-file release.spec=FILE (and --set-file release.schema=FILE), or name a ConfigMap with release.existingConfigMap" }}
{{- end }}
{{- if and $v.release.schema $v.release.existingConfigMap }}
{{- $problems = append $problems "release.schema goes with release.spec: put the schema into the ConfigMap as schema.yaml and name it in its spec" }}
{{- end }}
{{- if $v.release.spec }}
{{- $spec = fromYaml $v.release.spec }}
{{- if or (hasKey $spec "Error") (not (hasKey $spec "kind")) }}
{{- $problems = append $problems "release.spec is not the text of a spec (a mapping with kind, name, dataset ...): was it given with --set instead of --set-file?" }}
{{- $spec = dict }}
{{- else }}
{{- if and (kindIs "string" (get $spec "schema")) (not $v.release.schema) }}
{{- $problems = append $problems (printf "the spec names the schema file %s: give its text with --set-file release.schema=FILE" (get $spec "schema")) }}
{{- end }}
{{- if and (kindIs "map" (get $spec "schema")) $v.release.schema }}
{{- $problems = append $problems "the spec holds its schema already: drop release.schema" }}
{{- end }}
{{- end }}
{{- end }}

{{- $settings := $v.release.settings }}
{{- range $key := list "ledger" "schema" }}
{{- if hasKey $settings $key }}
{{- $problems = append $problems (printf "release.settings.%s is set by the chart: %s" $key (ternary "name a secret with secrets.ledger.existingSecret" "use release.schema" (eq $key "ledger"))) }}
{{- end }}
{{- end }}
{{- if kindIs "map" (get $settings "cluster") }}
{{- range $key := list "mode" "address" "security" "workers" "timeout" }}
{{- if hasKey $settings.cluster $key }}
{{- $problems = append $problems (printf "release.settings.cluster.%s is set by the chart: use dask.mode, dask.address, dask.timeout and dask.workers" $key) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and (kindIs "map" (get $settings "output")) (hasKey (get $settings "output" | default dict) "signing_key") }}
{{- $problems = append $problems "release.settings.output.signing_key is a secret: name it with secrets.signing.existingSecret" }}
{{- end }}

{{- /* Where data, work and output are: all pods must reach them. */}}
{{- if $spec }}
{{- $places := dict }}
{{- $_ := set $places "work" (list (default (default ".dpdist" (get $spec "work")) (get $settings "work"))) }}
{{- range $section := list "data" "output" }}
{{- $own := get $spec $section }}
{{- $other := get $settings $section }}
{{- $path := "" }}
{{- if kindIs "map" $own }}{{- $path = get $own "path" }}{{- end }}
{{- if and (kindIs "map" $other) (hasKey (default dict $other) "path") }}{{- $path = get $other "path" }}{{- end }}
{{- $_ := set $places (printf "%s.path" $section) (ternary $path (list $path) (kindIs "slice" $path)) }}
{{- end }}
{{- range $name, $paths := $places }}
{{- range $path := $paths }}
{{- $path = toString $path }}
{{- if and (eq $name "data.path") (hasKey $spec "federated") (not $path) }}
{{- /* each client has its own */}}
{{- else if not (or (hasPrefix "s3://" $path) (and $v.storage.existingClaim (hasPrefix "/data/" $path))) }}
{{- $problems = append $problems (printf "%s is %q, which is not the same place in every pod: --set release.settings.%s=s3://BUCKET/..., or name a shared volume with storage.existingClaim and use a path below /data" $name $path $name) }}
{{- end }}
{{- if and (hasPrefix "s3://" $path) (not $v.secrets.storage.existingSecret) (not (and $v.driver.serviceAccountAnnotations (or (eq $v.dask.mode "external") $v.dask.workers.serviceAccountAnnotations))) }}
{{- $problems = append $problems (printf "%s is in an object store, but pods have neither credentials nor an identity: set secrets.storage.existingSecret, or driver.serviceAccountAnnotations and dask.workers.serviceAccountAnnotations" $name) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- $endpoints := dict "storage.endpointUrl" $v.storage.endpointUrl }}
{{- range $section := list "data" "output" }}
{{- range $source := list $spec $settings }}
{{- $own := get $source $section }}
{{- $storage := dict }}
{{- if kindIs "map" $own }}{{ $storage = get $own "storage" }}{{ end }}
{{- if kindIs "map" $storage }}{{ $_ := set $endpoints (printf "%s.storage.endpoint_url" $section) (get $storage "endpoint_url" | toString) }}{{ end }}
{{- end }}
{{- end }}
{{- range $name, $url := $endpoints }}
{{- if regexMatch "^https?://[A-Za-z0-9.-]+(:[0-9]+)?/?$" $url }}
{{- $name = ternary (printf "%s is reached through proxy.url, which" $name) $name (eq (include "dpdist.proxied" (list $ $url)) "true") }}
{{- $port := include "dpdist.port" (list $ $url) | int }}
{{- if and $v.networkPolicy.enabled (not (has (toString $port) (splitList " " (include "dpdist.ports" $v.networkPolicy.storage.ports)))) }}
{{- $problems = append $problems (printf "%s is on port %d, which networkPolicy.storage.ports does not allow: --set 'networkPolicy.storage.ports={%d}'" $name $port $port) }}
{{- end }}
{{- end }}
{{- end }}

{{- if $v.proxy.url }}
{{- $port := splitList ":" $v.proxy.url | last | int }}
{{- if and $v.networkPolicy.enabled (not (has (toString $port) (splitList " " (include "dpdist.ports" (concat $v.networkPolicy.storage.ports $v.networkPolicy.prefect.ports))))) }}
{{- $problems = append $problems (printf "proxy.url is on port %d, which neither networkPolicy.storage.ports nor networkPolicy.prefect.ports allows: --set 'networkPolicy.storage.ports={%d}'" $port $port) }}
{{- end }}
{{- else if $v.proxy.except }}
{{- $problems = append $problems "proxy.except names what is reached without a proxy, but there is none: set proxy.url" }}
{{- end }}

{{- if eq $v.mode "prefect" }}
{{- if not $v.prefect.apiUrl }}
{{- $problems = append $problems "mode is prefect, but prefect.apiUrl is empty: name the API of your Prefect server (https://prefect.example/api)" }}
{{- end }}
{{- if and $v.prefect.apiKey.existingSecret (hasPrefix "http://" $v.prefect.apiUrl) }}
{{- $problems = append $problems "prefect.apiKey would travel in the clear to prefect.apiUrl: use https://" }}
{{- end }}
{{- if $v.prefect.apiUrl }}
{{- $name := ternary "prefect.apiUrl is reached through proxy.url, which" "prefect.apiUrl" (eq (include "dpdist.proxied" (list . $v.prefect.apiUrl)) "true") }}
{{- $port := include "dpdist.port" (list . $v.prefect.apiUrl) | int }}
{{- if and $v.networkPolicy.enabled (not (has (toString $port) (splitList " " (include "dpdist.ports" $v.networkPolicy.prefect.ports)))) }}
{{- $problems = append $problems (printf "%s is on port %d, which networkPolicy.prefect.ports does not allow: --set 'networkPolicy.prefect.ports={%d}'" $name $port $port) }}
{{- end }}
{{- end }}
{{- else if $v.prefect.apiUrl }}
{{- $problems = append $problems (printf "prefect.apiUrl is set, but mode is %s: set mode=prefect, or drop it" $v.mode) }}
{{- end }}

{{- if eq $v.dask.mode "external" }}
{{- if not $v.dask.address }}
{{- $problems = append $problems "dask.mode is external, but dask.address is empty: name your scheduler (tls://HOST:8786)" }}
{{- else }}
{{- $port := splitList ":" $v.dask.address | last | int }}
{{- if and $v.networkPolicy.enabled (not (has (toString $port) (splitList " " (include "dpdist.ports" $v.networkPolicy.dask.ports)))) }}
{{- $problems = append $problems (printf "dask.address is on port %d, which networkPolicy.dask.ports does not allow: --set 'networkPolicy.dask.ports={%d}'" $port $port) }}
{{- end }}
{{- end }}
{{- if and $v.dask.groups (ne $v.mode "workers") }}
{{- $problems = append $problems "dask.groups are workers of the chart, but dask.mode is external: start them where that scheduler is, or use dask.mode=deployment" }}
{{- end }}
{{- else }}
{{- if $v.dask.address }}
{{- $problems = append $problems (printf "dask.address is for dask.mode=external, not %s: the chart brings its own scheduler" $v.dask.mode) }}
{{- end }}
{{- if and (lt (int $v.dask.workers.replicas) 1) (not $v.dask.groups) (not $v.dask.workers.autoscaling.enabled) }}
{{- $problems = append $problems "there are no workers: set dask.workers.replicas to 1 or more" }}
{{- end }}
{{- end }}
{{- if eq $v.mode "workers" }}
{{- if or (ne $v.dask.mode "external") (not $v.dask.groups) }}
{{- $problems = append $problems "mode is workers, which join a scheduler that another release of the chart brings: set dask.mode=external, dask.address to its service (tls://NAME-scheduler.NAMESPACE:8786) and dask.groups" }}
{{- end }}
{{- if and $v.networkPolicy.enabled (not $v.networkPolicy.members) }}
{{- $problems = append $problems "mode is workers, but networkPolicy.members names no pods, so they could not reach the scheduler: name the namespace of the scheduler and of its workers" }}
{{- end }}
{{- end }}
{{- if and $v.dask.joining (eq $v.dask.mode "external") }}
{{- $problems = append $problems "dask.joining counts workers that join the chart's own scheduler, but dask.mode is external: set it where the scheduler is" }}
{{- end }}
{{- if and $v.dask.joining $v.networkPolicy.enabled (not $v.networkPolicy.members) }}
{{- $problems = append $problems "dask.joining waits for workers of other namespaces, which networkPolicy.members does not admit: name their namespaces and pods" }}
{{- end }}
{{- $scaling := $v.dask.workers.autoscaling }}
{{- if $scaling.enabled }}
{{- if eq $v.dask.mode "operator" }}
{{- $problems = append $problems "dask.workers.autoscaling: the operator would ask the scheduler without TLS, which it refuses: set dask.workers.replicas, or use dask.mode=deployment" }}
{{- else if eq $v.dask.mode "external" }}
{{- $problems = append $problems "dask.workers.autoscaling: dask.mode is external, so there is nothing to scale here" }}
{{- end }}
{{- if gt (int $scaling.minimum) (int $scaling.maximum) }}
{{- $problems = append $problems (printf "dask.workers.autoscaling.minimum=%d exceeds maximum=%d" (int $scaling.minimum) (int $scaling.maximum)) }}
{{- end }}
{{- end }}

{{- $names := dict "workers" true "scheduler" true "release" true "prefect" true "spec" true "default" true }}
{{- $held := dict $v.secrets.tls.scheduler "the scheduler" $v.secrets.tls.worker "all workers" }}
{{- range $secret := list $v.secrets.kek $v.secrets.storage }}
{{- if $secret.existingSecret }}{{ $_ := set $held $secret.existingSecret "the common workers" }}{{ end }}
{{- end }}
{{- $driver := list $v.secrets.ledger.existingSecret $v.secrets.signing.existingSecret $v.secrets.tls.client $v.prefect.apiKey.existingSecret }}
{{- range $secret := $driver }}
{{- if $secret }}{{ $_ := set $held $secret "the driver" }}{{ end }}
{{- end }}
{{- range $group := $v.dask.groups }}
{{- with $group }}
{{- if hasKey $names .name }}
{{- $problems = append $problems (printf "dask.groups: the name %q is given twice, or is one of the chart's: choose another" .name) }}
{{- end }}
{{- $_ := set $names .name true }}
{{- $own := default dict .secrets }}
{{- if and (not (get (default dict $own.storage) "existingSecret")) (not .serviceAccountAnnotations) }}
{{- $problems = append $problems (printf "dask.groups: group %q has no credentials of its own, so it could read what the others can: set its secrets.storage.existingSecret, or its serviceAccountAnnotations" .name) }}
{{- end }}
{{- range $kind, $secret := $own }}
{{- $found := get $secret "existingSecret" }}
{{- if and $found (or (ne $kind "ledger") (has $found $driver)) (hasKey $held $found) (ne (get $held $found) $group.name) }}
{{- $problems = append $problems (printf "dask.groups: group %q has the secret %q of %s as its secrets.%s: give it one of its own" $group.name $found (get $held $found) $kind) }}
{{- end }}
{{- if not (hasKey $held $found) }}{{ $_ := set $held $found $group.name }}{{ end }}
{{- end }}
{{- if not (get (default dict $own.kek) "existingSecret") }}
{{- $problems = append $problems (printf "dask.groups: group %q has no key-encryption key of its own, so others could open its keys: set its secrets.kek.existingSecret" .name) }}
{{- end }}
{{- end }}
{{- end }}
{{- if ne $v.dask.mode "external" }}
{{- $offered := dict }}
{{- range $v.dask.groups }}{{ range $resource, $_ := .resources }}{{ $_ := set $offered $resource true }}{{ end }}{{ end }}
{{- $federated := get $spec "federated" }}
{{- if and (kindIs "map" $federated) (not $v.dask.joining) }}
{{- range $client := get $federated "clients" | default list }}
{{- if kindIs "map" $client }}
{{- $resource := get $client "resource" | default (printf "client-%v" (get $client "name")) }}
{{- if not (hasKey $offered $resource) }}
{{- $problems = append $problems (printf "no group of workers offers the resource %q of client %v: add one to dask.groups with resources: {%s: 1}" $resource (get $client "name") $resource) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- $sizes := dict "driver" $v.driver.memory "dask.scheduler" $v.dask.scheduler.memory "dask.workers" $v.dask.workers.memory "prefect" $v.prefect.memory }}
{{- range $v.dask.groups }}
{{- if .memory }}{{ $_ := set $sizes (printf "dask.groups: %s" .name) .memory }}{{ end }}
{{- end }}
{{- range $role, $memory := $sizes }}
{{- if lt (include "dpdist.mebibytes" $memory | int) 512 }}
{{- $problems = append $problems (printf "%s.memory=%s is too little to start: give it 512Mi or more" $role $memory) }}
{{- end }}
{{- end }}

{{- $tls := $v.secrets.tls }}
{{- if or (eq $tls.scheduler $tls.worker) (eq $tls.scheduler $tls.client) (eq $tls.worker $tls.client) }}
{{- $problems = append $problems "secrets.tls: scheduler, worker and client need a secret each, so that no pod has another's private key" }}
{{- end }}

{{- with $problems }}
{{- printf "\n\nThese values do not go together:\n  - %s\n" (join "\n  - " .) | fail }}
{{- end }}
{{- end }}

{{/* (root, URL): whether it is reached through the proxy */}}
{{- define "dpdist.proxied" -}}
{{- $proxy := (index . 0).Values.proxy }}
{{- $url := urlParse (index . 1) }}
{{- $found := and (ne $proxy.url "") (eq $url.scheme "https") }}
{{- range concat (list ".svc" ".cluster.local") $proxy.except }}
{{- if hasSuffix . $url.hostname }}{{ $found = false }}{{ end }}
{{- end }}
{{- $found }}
{{- end }}

{{/* (root, URL): the port that is spoken to */}}
{{- define "dpdist.port" -}}
{{- $url := urlParse (ternary (index . 0).Values.proxy.url (index . 1) (eq (include "dpdist.proxied" .) "true")) }}
{{- ternary (splitList ":" $url.host | last) (ternary "443" "80" (eq $url.scheme "https")) (contains ":" $url.host) }}
{{- end }}

{{/* ports, separated by blanks (values files give floats) */}}
{{- define "dpdist.ports" -}}
{{- $ports := list }}
{{- range . }}{{- $ports = append $ports (int . | toString) }}{{- end }}
{{- join " " $ports }}
{{- end }}
