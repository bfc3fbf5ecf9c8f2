{{/* Pods: hardened alike, each with no more than it needs. */}}

{{- define "dpdist.podSecurity" -}}
runAsNonRoot: true
{{- if not .Values.openshift }}
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
{{- end }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "dpdist.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* (root, placement): the beginning of every pod's spec */}}
{{- define "dpdist.pod" -}}
{{- $root := index . 0 }}
{{- $placement := index . 1 -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
securityContext:
  {{- include "dpdist.podSecurity" $root | nindent 2 }}
{{- with $placement.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $placement.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $placement.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* (section of the values, name): the service account of a kind of process: yours, or the one that the chart makes */}}
{{- define "dpdist.account" -}}
{{- default (index . 1) (index . 0).serviceAccountName | quote }}
{{- end }}

{{/* Volumes of the values, for the driver and the workers. */}}
{{- define "dpdist.extraMounts" -}}
{{- range .Values.extraVolumes }}
- {name: {{ printf "extra-%s" .name | quote }}, mountPath: {{ .mountPath | quote }}, readOnly: true}
{{- end }}
{{- end }}

{{- define "dpdist.extraVolumes" -}}
{{- range .Values.extraVolumes }}
- name: {{ printf "extra-%s" .name | quote }}
  {{- toYaml .source | nindent 2 }}
{{- end }}
{{- end }}

{{/* (cpu, memory, size of a temporary folder ...): a container's resources; memory is reserved whole, CPU and the node's disk
may be borrowed. Beside the folders there are its logs. */}}
{{- define "dpdist.resources" -}}
{{- $disk := 1024 }}
{{- range slice . 2 }}{{ $disk = add $disk (include "dpdist.mebibytes" .) }}{{ end -}}
requests:
  cpu: {{ index . 0 | quote }}
  memory: {{ index . 1 }}
  ephemeral-storage: 1Gi
limits:
  memory: {{ index . 1 }}
  ephemeral-storage: {{ $disk }}Mi
{{- end }}

{{/* a size */}}
{{- define "dpdist.mebibytes" -}}
{{- ternary (mul 1024 (trimSuffix "Gi" . | int)) (trimSuffix "Mi" . | int) (hasSuffix "Gi" .) }}
{{- end }}

{{- define "dpdist.container" -}}
image: {{ include "dpdist.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  {{- include "dpdist.containerSecurity" . | nindent 2 }}
{{- end }}

{{/* Environment of everything: nothing is written but to /tmp. */}}
{{- define "dpdist.baseEnv" -}}
- name: HOME
  value: /tmp
- name: TMPDIR
  value: /tmp
- name: USER
  value: dpdist
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
{{- range .Values.extraEnv }}
- name: {{ .name }}
  value: {{ .value | replace "$(" "$$(" | quote }}
{{- end }}
{{- end }}

{{/* (root, secrets of storage): how the object store is reached */}}
{{- define "dpdist.storageEnv" -}}
{{- $root := index . 0 }}
{{- $secret := index . 1 -}}
- name: DPDIST_KEK_FILE
  value: /run/secrets/dpdist/kek
{{- with $root.Values.storage.endpointUrl }}
- name: AWS_ENDPOINT_URL
  value: {{ . | quote }}
{{- end }}
{{- with $root.Values.storage.region }}
- name: AWS_DEFAULT_REGION
  value: {{ . | quote }}
{{- end }}
{{- if $secret.existingSecret }}
- name: AWS_ACCESS_KEY_ID
  valueFrom:
    secretKeyRef:
      name: {{ $secret.existingSecret | quote }}
      key: {{ $secret.accessKeyIdKey | quote }}
- name: AWS_SECRET_ACCESS_KEY
  valueFrom:
    secretKeyRef:
      name: {{ $secret.existingSecret | quote }}
      key: {{ $secret.secretAccessKeyKey | quote }}
{{- end }}
{{- include "dpdist.outsideEnv" $root }}
{{- end }}

{{/* Your own authorities, for the object store, the ledger and Prefect; the way out. */}}
{{- define "dpdist.outsideEnv" -}}
{{- with .Values.proxy.url }}
- name: HTTPS_PROXY
  value: {{ . | quote }}
- name: NO_PROXY
  value: {{ concat (list "127.0.0.1" "localhost" ".svc" ".cluster.local" "$(KUBERNETES_SERVICE_HOST)") $.Values.proxy.except | join "," | quote }}
{{- end }}
{{- if .Values.trust.existingConfigMap }}
{{- range $name := list "AWS_CA_BUNDLE" "PGSSLROOTCERT" "SSL_CERT_FILE" "PREFECT_API_SSL_CERT_FILE" }}
- name: {{ $name }}
  value: /etc/dpdist/trust/ca.pem
{{- end }}
{{- /* libpq's default would look at no certificate, and speak in the clear to who asks for it; a URL with sslmode decides. */}}
- name: PGSSLMODE
  value: verify-full
{{- end }}
{{- end }}

{{- define "dpdist.trustMount" -}}
{{- if .Values.trust.existingConfigMap }}
- {name: trust, mountPath: /etc/dpdist/trust, readOnly: true}
{{- end }}
{{- end }}

{{- define "dpdist.trustVolume" -}}
{{- if .Values.trust.existingConfigMap }}
- name: trust
  configMap:
    name: {{ .Values.trust.existingConfigMap | quote }}
    items:
      - {key: {{ .Values.trust.key | quote }}, path: ca.pem}
{{- end }}
{{- end }}

{{/* secret of certificates: as files of a projected volume */}}
{{- define "dpdist.tlsSource" -}}
- secret:
    name: {{ . | quote }}
    items:
      - {key: ca.crt, path: ca.pem}
      - {key: tls.crt, path: cert.pem}
      - {key: tls.key, path: key.pem}
{{- end }}

{{- define "dpdist.kekSource" -}}
- secret:
    name: {{ .existingSecret | quote }}
    items:
      - {key: {{ .key | quote }}, path: kek}
{{- end }}

{{/* The scheduler's pod: it holds its certificate and no other secret. */}}
{{- define "dpdist.schedulerPod" -}}
{{- $scheduler := .Values.dask.scheduler -}}
serviceAccountName: {{ include "dpdist.account" (list $scheduler (include "dpdist.scheduler" .)) }}
{{ include "dpdist.pod" (list . $scheduler) }}
containers:
  - name: scheduler
    {{- include "dpdist.container" . | nindent 4 }}
    command: [dask, scheduler]
    args:
      - --protocol
      - tls
      - --host
      {{- /* In brackets, or Dask takes no address of IPv6. */}}
      - "[$(POD_IP)]"
      - --port
      - "8786"
      - --dashboard-address
      - 127.0.0.1:8787
      - --tls-ca-file
      - /run/secrets/dpdist/ca.pem
      - --tls-cert
      - /run/secrets/dpdist/cert.pem
      - --tls-key
      - /run/secrets/dpdist/key.pem
    env:
      {{- include "dpdist.baseEnv" . | nindent 6 }}
    ports:
      - name: tls
        containerPort: 8786
    {{- /* The port speaks TLS to members only, so the scheduler is asked from inside, on the loopback. */}}
    startupProbe:
      {{- include "dpdist.health" 8787 | nindent 6 }}
      periodSeconds: 2
      failureThreshold: 90
    readinessProbe:
      {{- include "dpdist.health" 8787 | nindent 6 }}
      periodSeconds: 15
    livenessProbe:
      {{- include "dpdist.health" 8787 | nindent 6 }}
      periodSeconds: 30
      failureThreshold: 6
    resources:
      {{- include "dpdist.resources" (list $scheduler.cpu $scheduler.memory "1Gi") | nindent 6 }}
    volumeMounts:
      - {name: secrets, mountPath: /run/secrets/dpdist, readOnly: true}
      - {name: tmp, mountPath: /tmp}
volumes:
  - name: secrets
    projected:
      defaultMode: 0440
      sources:
        {{- include "dpdist.tlsSource" .Values.secrets.tls.scheduler | nindent 8 }}
  - name: tmp
    emptyDir:
      sizeLimit: 1Gi
{{- end }}

{{/* port: asks a Dask process for its health */}}
{{- define "dpdist.health" -}}
exec:
  command:
    - python
    - -c
    - |
      import sys, urllib.request
      try:
          urllib.request.urlopen("http://127.0.0.1:{{ . }}/health", timeout=8)
      except OSError as error:
          sys.exit(f"not ready: {error}")
timeoutSeconds: 10
{{- end }}

{{/* (root, group): a group of workers, with the common workers' settings where it has none of its own */}}
{{- define "dpdist.group" -}}
{{- $root := index . 0 }}
{{- $group := index . 1 }}
{{- $common := deepCopy $root.Values.dask.workers }}
{{- $_ := set $common "nodeSelector" dict }}
{{- $_ := set $common "serviceAccountAnnotations" dict }}
{{- $_ := set $common "serviceAccountName" (ternary "" $root.Values.dask.workers.serviceAccountName (hasKey $group "name")) }}
{{- $_ := set $common "existingClaim" (ternary "" $root.Values.storage.existingClaim (hasKey $group "name")) }}
{{- $own := default dict $group.secrets }}
{{- $secrets := dict "ledger" (default dict $own.ledger) "identity" (default dict $own.identity) }}
{{- range $name := list "kek" "storage" }}
{{- $_ := set $secrets $name (mergeOverwrite (deepCopy (get $root.Values.secrets $name)) (get $own $name | default dict)) }}
{{- end }}
{{- mergeOverwrite $common (deepCopy $group) (dict "secrets" $secrets) | toJson }}
{{- end }}

{{/* (root, workers, name of their service account): a worker's pod. There is no liveness probe: a worker that computes
does not answer, its nanny starts it again if it dies, and it ends by itself when the scheduler is away for long. */}}
{{- define "dpdist.workerPod" -}}
{{- $root := index . 0 }}
{{- $workers := index . 1 -}}
serviceAccountName: {{ include "dpdist.account" (list $workers (index . 2)) }}
{{ include "dpdist.pod" (list $root $workers) }}
terminationGracePeriodSeconds: 60
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "dpdist.pods" (list $root "worker") | nindent 8 }}
containers:
  - name: worker
    {{- include "dpdist.container" $root | nindent 4 }}
    {{- /* A worker ends when its scheduler does, and begins again here: Kubernetes would wait longer each time. */}}
    command: [sh, -c]
    args:
      - |
        trap 'kill -TERM $worker; wait $worker; exit 143' TERM
        while :; do dask worker "$@" & worker=$!; wait $worker; sleep 2; done
      - worker
      - {{ include "dpdist.address" $root }}
      - --host
      - "[$(POD_IP)]"
      - --worker-port
      - "8788"
      - --nanny-port
      - "8789"
      - --dashboard-address
      - 127.0.0.1:8790
      - --nthreads
      - "1"
      {{- /* The rest is the nanny's and the probe's: Dask ends a task that grows too large before the kernel ends the pod. */}}
      - --memory-limit
      - {{ sub (include "dpdist.mebibytes" $workers.memory | int) 128 }}MiB
      - --local-directory
      - /spill
      - --death-timeout
      - "300"
      {{- with $workers.resources }}
      - --resources
      - {{ range $i, $name := keys . | sortAlpha }}{{ if $i }} {{ end }}{{ $name }}={{ get $workers.resources $name }}{{ end }}
      {{- end }}
      - --tls-ca-file
      - /run/secrets/dpdist/ca.pem
      - --tls-cert
      - /run/secrets/dpdist/cert.pem
      - --tls-key
      - /run/secrets/dpdist/key.pem
    env:
      {{- include "dpdist.baseEnv" $root | nindent 6 }}
      - name: DASK_SCHEDULER_ADDRESS
        value: {{ include "dpdist.address" $root }}
      {{- /* Dask's default hands every array back to the kernel, at several times the CPU. */}}
      - name: DASK_DISTRIBUTED__NANNY__PRE_SPAWN_ENVIRON
        value: '{"MALLOC_TRIM_THRESHOLD_": None}'
      {{- include "dpdist.storageEnv" (list $root $workers.secrets.storage) | nindent 6 }}
      {{- with $workers.secrets.ledger }}
      - name: DPDIST_LEDGER
        valueFrom:
          secretKeyRef:
            name: {{ .existingSecret | quote }}
            key: {{ .key | quote }}
      {{- end }}
    ports:
      - name: worker
        containerPort: 8788
      - name: nanny
        containerPort: 8789
    startupProbe:
      {{- include "dpdist.health" 8790 | nindent 6 }}
      periodSeconds: 5
      failureThreshold: 60
    readinessProbe:
      {{- include "dpdist.health" 8790 | nindent 6 }}
      periodSeconds: 30
      failureThreshold: 20
    resources:
      {{- $spill := ternary $workers.spill.size "0Mi" (empty $workers.spill.storageClassName) }}
      {{- include "dpdist.resources" (list $workers.cpu $workers.memory "2Gi" $spill) | nindent 6 }}
    volumeMounts:
      - {name: secrets, mountPath: /run/secrets/dpdist, readOnly: true}
      - {name: tmp, mountPath: /tmp}
      - {name: spill, mountPath: /spill}
      {{- if $workers.existingClaim }}
      - {name: data, mountPath: /data}
      {{- end }}
      {{- with include "dpdist.trustMount" $root }}
      {{- . | trim | nindent 6 }}
      {{- end }}
      {{- with include "dpdist.extraMounts" $root }}
      {{- . | trim | nindent 6 }}
      {{- end }}
volumes:
  - name: secrets
    projected:
      defaultMode: 0440
      sources:
        {{- include "dpdist.tlsSource" $root.Values.secrets.tls.worker | nindent 8 }}
        {{- include "dpdist.kekSource" $workers.secrets.kek | nindent 8 }}
        {{- with $workers.secrets.identity }}
        - secret:
            name: {{ .existingSecret | quote }}
            items:
              - {key: {{ .key | quote }}, path: identity.pem}
        {{- end }}
  - name: tmp
    emptyDir:
      sizeLimit: 2Gi
  - name: spill
    {{- if $workers.spill.storageClassName }}
    ephemeral:
      volumeClaimTemplate:
        spec:
          accessModes: [ReadWriteOnce]
          storageClassName: {{ $workers.spill.storageClassName | quote }}
          resources:
            requests:
              storage: {{ $workers.spill.size }}
    {{- else }}
    emptyDir:
      sizeLimit: {{ $workers.spill.size }}
    {{- end }}
  {{- if $workers.existingClaim }}
  - name: data
    persistentVolumeClaim:
      claimName: {{ $workers.existingClaim | quote }}
  {{- end }}
  {{- with include "dpdist.trustVolume" $root }}
  {{- . | trim | nindent 2 }}
  {{- end }}
  {{- with include "dpdist.extraVolumes" $root }}
  {{- . | trim | nindent 2 }}
  {{- end }}
{{- end }}

{{/* Environment of the process that drives a release. */}}
{{- define "dpdist.driverEnv" -}}
{{ include "dpdist.baseEnv" . }}
{{- /* A pod sees all cores of its node: with a thread on each, memory and the last digits would depend on the node. */}}
- name: OMP_NUM_THREADS
  value: "1"
- name: OPENBLAS_NUM_THREADS
  value: "1"
- name: DPDIST_LOG
  value: json
- name: DPDIST_SPECS
  value: /etc/dpdist/spec
- name: DPDIST_LEDGER
  valueFrom:
    secretKeyRef:
      name: {{ .Values.secrets.ledger.existingSecret | quote }}
      key: {{ .Values.secrets.ledger.key | quote }}
{{ include "dpdist.storageEnv" (list . .Values.secrets.storage) }}
{{- end }}

{{/* Pod of the process that drives a release. */}}
{{- define "dpdist.driverPod" -}}
serviceAccountName: {{ include "dpdist.account" (list .Values.driver (printf "%s-release" (include "dpdist.fullname" .))) }}
restartPolicy: Never
{{ include "dpdist.pod" (list . .Values.driver) }}
containers:
  - name: release
    {{- include "dpdist.container" . | nindent 4 }}
    command: [dpdist, release, /etc/dpdist/spec/release.yaml, --once]
    args:
      {{- range include "dpdist.flatten" (list "" (include "dpdist.settings" . | fromJson)) | trim | splitList "\n" }}
      - --set
      - {{ . | replace "$(" "$$(" | toJson }}
      {{- end }}
    env:
      {{- include "dpdist.driverEnv" . | nindent 6 }}
    resources:
      {{- include "dpdist.resources" (list .Values.driver.cpu .Values.driver.memory .Values.driver.scratch) | nindent 6 }}
    volumeMounts:
      {{- include "dpdist.driverMounts" . | nindent 6 }}
volumes:
  {{- include "dpdist.driverVolumes" . | nindent 2 }}
{{- end }}

{{- define "dpdist.driverMounts" -}}
- {name: spec, mountPath: /etc/dpdist/spec, readOnly: true}
- {name: secrets, mountPath: /run/secrets/dpdist, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- if .Values.storage.existingClaim }}
- {name: data, mountPath: /data}
{{- end }}
{{- include "dpdist.trustMount" . }}
{{- include "dpdist.extraMounts" . }}
{{- end }}

{{- define "dpdist.driverVolumes" -}}
- name: spec
  configMap:
    name: {{ include "dpdist.configMap" . | quote }}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
      {{- include "dpdist.tlsSource" .Values.secrets.tls.client | nindent 6 }}
      {{- include "dpdist.kekSource" .Values.secrets.kek | nindent 6 }}
      {{- with .Values.secrets.signing }}
      {{- if .existingSecret }}
      - secret:
          name: {{ .existingSecret | quote }}
          items:
            - {key: {{ .key | quote }}, path: signing.pem}
      {{- end }}
      {{- end }}
- name: tmp
  emptyDir:
    sizeLimit: {{ .Values.driver.scratch }}
{{- if .Values.storage.existingClaim }}
- name: data
  persistentVolumeClaim:
    claimName: {{ .Values.storage.existingClaim | quote }}
{{- end }}
{{- include "dpdist.trustVolume" . }}
{{- include "dpdist.extraVolumes" . }}
{{- end }}
