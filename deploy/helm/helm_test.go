// Package helm_test lints and renders the chart with several sets of values, and decodes the
// objects like Kubernetes.
package helm_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"spendhook/deploy/internal/daemontest"
)

const least = `
redis: {url: "redis://redis.internal:6379/0"}
storage: {url: "postgres://user:password@postgres.internal/spendhook"}
tls: {existingSecret: spendhook-tls}
`

const existing = `
redis: {existingSecret: redis, existingSecretKey: address}
storage: {existingSecret: database}
encryption: {existingSecret: key}
tls: {existingSecret: spendhook-tls, clientCASecret: clients, clientCAKey: clients.pem}
`

const everything = existing + `
image: {repository: registry.example.com/spendhook, tag: v1.2.3, pullPolicy: Always, pullSecrets: [{name: registry}]}
replicas: 5
config:
  log: {level: debug}
  public_url: https://hooks.example.com
  delivery: {attempt_timeout: 20s}
service: {type: LoadBalancer, port: 8443, annotations: {example.com/internal: "true"}}
serviceMonitor: {enabled: true, interval: 30s, labels: {release: prometheus}}
prometheusRule: {enabled: true, runbooks: "https://wiki.example.com/runbooks"}
networkPolicy:
  enabled: true
  from: [{namespaceSelector: {matchLabels: {team: payments}}}]
  adminFrom: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]
  egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8}}], ports: [{port: 6379}, {port: 5432}]}]
  relayEgress: [{to: [{ipBlock: {cidr: 10.1.0.0/16}}], ports: [{port: 9092}]}]
serviceAccount: {annotations: {example.com/role: spendhook}}
autoscaling: {enabled: true, minReplicas: 3, maxReplicas: 9, targetCPU: 50}
ingress: {enabled: true, className: nginx, annotations: {nginx.ingress.kubernetes.io/ssl-passthrough: "true"}, hosts: [hooks.example.com, hooks.example.org], tlsSecret: hooks}
gateway: {enabled: true, parentRefs: [{name: public, sectionName: passthrough}], hostnames: [hooks.example.com]}
priorityClassName: high
podLabels: {team: payments}
podSecurityContext: {runAsNonRoot: true, runAsUser: 1000, fsGroup: 1000}
securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}, runAsUser: 1000}
strategy: {rollingUpdate: {maxSurge: 2, maxUnavailable: 1}}
probes: {liveness: {timeoutSeconds: 20}}
extraEnv: [{name: SSL_CERT_DIR, value: /etc/extra}]
extraVolumes: [{name: extra, configMap: {name: company-ca}}]
extraVolumeMounts: [{name: extra, mountPath: /etc/extra, readOnly: true}]
nodeSelector: {kubernetes.io/arch: arm64}
tolerations: [{key: dedicated, operator: Exists}]
affinity: {nodeAffinity: {}}
podAnnotations: {example.com/log: "true"}
`

const relay = `
relay:
  enabled: true
  existingSecret: relay
  config:
    url: https://hooks-spendhook.payments
    token_file: /etc/spendhook/relay-secrets/token
    sources:
      payments:
        companies: [6f1c2a7e-3b0d-4a53-9c1c-0f5b8f0d2a11]
        rabbitmq: {url_file: /etc/spendhook/relay-secrets/rabbitmq, queue: payments, dead_letter_queue: payments-dead}
        mapping: {id: 'headers["id"]', event: '"PAYMENT_PAID"'}
`

// relays adds values to those of relay.
const relays = relay + `
  replicas: 2
  resources: {}
`

const proxies = `
redis: {existingSecret: redis}
storage: {existingSecret: database}
encryption: {key: "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="}
tls: {clientCASecret: clients}
config: {tls: {trusted_proxies: [10.0.0.0/8]}}
migrations: {enabled: false}
podDisruptionBudget: {enabled: false}
resources: {}
topologySpreadConstraints: []
replicas: 1
`

// helm runs a command on the chart with these values.
func helm(t *testing.T, values string, args ...string) (string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(values), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*daemontest.Patience) // the first command builds helm
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", append([]string{"tool", "helm"}, append(args, "--values", file)...)...)
	var out, errs strings.Builder // separate, because helm prints warnings about symbolic links
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String() + errs.String(), err
	}
	return out.String(), nil
}

// objects has the objects of the chart, by kind and name.
type objects map[string]any

// route is what the chart uses of the routes of the Gateway API.
type route struct {
	meta.TypeMeta   `json:",inline"`
	meta.ObjectMeta `json:"metadata"`

	Spec struct {
		ParentRefs []map[string]string
		Hostnames  []string
		Rules      []struct {
			BackendRefs []struct {
				Name string
				Port int
			}
		}
	}
}

// render renders the chart and decodes the objects. A field that a kind does not have is an error.
func render(t *testing.T, values string) objects {
	t.Helper()
	out, err := helm(t, values, "template", "hooks", "spendhook", "--namespace", "payments")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	kinds := map[string]func() any{
		"Deployment": func() any { return &apps.Deployment{} }, "Service": func() any { return &core.Service{} },
		"Secret": func() any { return &core.Secret{} }, "ConfigMap": func() any { return &core.ConfigMap{} },
		"ServiceAccount": func() any { return &core.ServiceAccount{} }, "Job": func() any { return &batch.Job{} },
		"PodDisruptionBudget": func() any { return &policy.PodDisruptionBudget{} },
		"NetworkPolicy":       func() any { return &networking.NetworkPolicy{} },
		"Ingress":             func() any { return &networking.Ingress{} },
		"HTTPRoute":           func() any { return &route{} }, "TLSRoute": func() any { return &route{} },
		"HorizontalPodAutoscaler": func() any { return &autoscaling.HorizontalPodAutoscaler{} },
		"ServiceMonitor":          func() any { return &monitoring.ServiceMonitor{} },
		"PrometheusRule":          func() any { return &monitoring.PrometheusRule{} },
	}
	found := objects{}
	for document := range strings.SplitSeq("\n"+out, "\n---") {
		var head struct {
			meta.TypeMeta   `json:",inline"`
			meta.ObjectMeta `json:"metadata"`
		}
		if err := yaml.Unmarshal([]byte(document), &head); err != nil {
			t.Fatalf("%v in:\n%s", err, document)
		}
		if head.Kind == "" {
			continue // comments alone
		}
		object := kinds[head.Kind]
		if object == nil {
			t.Fatalf("unexpected object of the kind %s", head.Kind)
		}
		o := object()
		if err := yaml.UnmarshalStrict([]byte(document), o); err != nil {
			t.Errorf("%s %s: %v", head.Kind, head.Name, err)
		}
		found[head.Kind+" "+head.Name] = o
	}
	return found
}

func TestChart(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "spendhook")
	daemontest.Build(t, binary)
	for name, tc := range map[string]struct {
		values  string
		objects []string
	}{
		"least": {least, []string{
			"ConfigMap hooks-spendhook", "Deployment hooks-spendhook", "Job hooks-spendhook-migration", "PodDisruptionBudget hooks-spendhook",
			"Secret hooks-spendhook", "Secret hooks-spendhook-migration", "Service hooks-spendhook", "Service hooks-spendhook-admin",
			"ServiceAccount hooks-spendhook",
		}},
		"existing secrets": {existing, []string{
			"ConfigMap hooks-spendhook", "Deployment hooks-spendhook", "Job hooks-spendhook-migration", "PodDisruptionBudget hooks-spendhook",
			"Service hooks-spendhook", "Service hooks-spendhook-admin", "ServiceAccount hooks-spendhook",
		}},
		"everything": {everything, []string{
			"ConfigMap hooks-spendhook", "Deployment hooks-spendhook", "HorizontalPodAutoscaler hooks-spendhook", "Ingress hooks-spendhook",
			"Job hooks-spendhook-migration", "NetworkPolicy hooks-spendhook", "PodDisruptionBudget hooks-spendhook", "PrometheusRule hooks-spendhook",
			"Service hooks-spendhook", "Service hooks-spendhook-admin", "ServiceAccount hooks-spendhook", "ServiceMonitor hooks-spendhook",
			"TLSRoute hooks-spendhook",
		}},
		"a relay": {existing + relay, []string{
			"ConfigMap hooks-spendhook", "ConfigMap hooks-spendhook-relay", "Deployment hooks-spendhook", "Deployment hooks-spendhook-relay",
			"Job hooks-spendhook-migration", "PodDisruptionBudget hooks-spendhook", "Service hooks-spendhook", "Service hooks-spendhook-admin",
			"Service hooks-spendhook-relay", "ServiceAccount hooks-spendhook",
		}},
		"everything with relays": {everything + relays, []string{
			"ConfigMap hooks-spendhook", "ConfigMap hooks-spendhook-relay", "Deployment hooks-spendhook", "Deployment hooks-spendhook-relay",
			"HorizontalPodAutoscaler hooks-spendhook", "Ingress hooks-spendhook",
			"Job hooks-spendhook-migration", "NetworkPolicy hooks-spendhook", "NetworkPolicy hooks-spendhook-relay",
			"PodDisruptionBudget hooks-spendhook", "PodDisruptionBudget hooks-spendhook-relay", "PrometheusRule hooks-spendhook",
			"Service hooks-spendhook", "Service hooks-spendhook-admin", "Service hooks-spendhook-relay", "ServiceAccount hooks-spendhook",
			"ServiceMonitor hooks-spendhook", "ServiceMonitor hooks-spendhook-relay", "TLSRoute hooks-spendhook",
		}},
		"proxies": {proxies, []string{
			"ConfigMap hooks-spendhook", "Deployment hooks-spendhook", "Secret hooks-spendhook", "Service hooks-spendhook",
			"Service hooks-spendhook-admin", "ServiceAccount hooks-spendhook",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if out, err := helm(t, tc.values, "lint", "--strict", "spendhook"); err != nil {
				t.Errorf("lint: %v\n%s", err, out)
			}
			found := render(t, tc.values)
			var names []string
			for name := range found {
				names = append(names, name)
			}
			if slices.Sort(names); !slices.Equal(names, tc.objects) {
				t.Errorf("objects:\n%v, want\n%v", names, tc.objects)
			}
			d := found["Deployment hooks-spendhook"].(*apps.Deployment)
			checkPod(t, d.Spec.Template.Spec)
			if job, ok := found["Job hooks-spendhook-migration"].(*batch.Job); ok {
				checkPod(t, job.Spec.Template.Spec)
			}
			checkSelector(t, d)
			if r, ok := found["Deployment hooks-spendhook-relay"].(*apps.Deployment); ok {
				checkPod(t, r.Spec.Template.Spec)
				checkSelector(t, r)
			}
			checkSettings(t, binary, d, found["ConfigMap hooks-spendhook"].(*core.ConfigMap).Data["spendhook.yml"])
		})
	}
}

// checkSelector checks that a deployment selects its own pods.
func checkSelector(t *testing.T, d *apps.Deployment) {
	t.Helper()
	for key, value := range d.Spec.Selector.MatchLabels {
		if d.Spec.Template.Labels[key] != value {
			t.Errorf("the deployment does not select its pods by %s", key)
		}
	}
}

// checkPod checks the settings that every pod must have.
func checkPod(t *testing.T, pod core.PodSpec) {
	t.Helper()
	c := pod.Containers[0]
	if pod.EnableServiceLinks == nil || *pod.EnableServiceLinks || *pod.AutomountServiceAccountToken || !*pod.SecurityContext.RunAsNonRoot ||
		!*c.SecurityContext.ReadOnlyRootFilesystem || *c.SecurityContext.AllowPrivilegeEscalation {
		t.Errorf("%s: %+v", c.Name, pod)
	}
	volumes := map[string]bool{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = true
	}
	for _, m := range c.VolumeMounts {
		if !volumes[m.Name] {
			t.Errorf("%s mounts %s, but there is no such volume", c.Name, m.Name)
		}
	}
}

// checkSettings checks the settings of the chart with the daemon's own command.
func checkSettings(t *testing.T, binary string, d *apps.Deployment, text string) {
	t.Helper()
	dir := t.TempDir()
	settings := filepath.Join(dir, "spendhook.yml")
	for name, content := range map[string]string{
		"spendhook.yml": text, "redis-url": "redis://redis.internal:6379/0", "storage-url": "postgres://user@postgres.internal/spendhook",
		"encryption-key": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), binary, "config", "check", settings)
	for _, v := range d.Spec.Template.Spec.Containers[0].Env {
		if v.ValueFrom == nil {
			cmd.Env = append(cmd.Env, v.Name+"="+strings.Replace(v.Value, "/etc/spendhook/secrets", dir, 1))
		}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("the settings: %v\n%s\n%s", err, out, text)
	}
}

// The chart has the rules of deploy/monitoring, and its service monitor has the job that they need.
func TestChartRules(t *testing.T) {
	found := render(t, everything)
	rule := found["PrometheusRule hooks-spendhook"].(*monitoring.PrometheusRule)
	count := 0
	for _, file := range []string{"rules.yaml", "alerts.yaml"} {
		text, err := os.ReadFile(filepath.Join("../monitoring", file))
		if err != nil {
			t.Fatal(err)
		}
		var want monitoring.PrometheusRuleSpec
		if err := yaml.Unmarshal(text, &want); err != nil {
			t.Fatal(err)
		}
		for _, group := range want.Groups {
			got := rule.Spec.Groups[count]
			count++
			if got.Name != group.Name || len(got.Rules) != len(group.Rules) {
				t.Errorf("group %s has %d rules, want %d of %s", got.Name, len(got.Rules), len(group.Rules), group.Name)
				continue
			}
			for i := range group.Rules {
				if base := group.Rules[i].Labels["base"]; base != "" {
					group.Rules[i].Labels["base"] = "https://wiki.example.com/runbooks"
				}
				if !reflect.DeepEqual(got.Rules[i], group.Rules[i]) {
					t.Errorf("rule %d of group %s is not that of %s", i, group.Name, file)
				}
			}
		}
	}
	if count != len(rule.Spec.Groups) {
		t.Errorf("%d groups, want %d", len(rule.Spec.Groups), count)
	}
	monitor := found["ServiceMonitor hooks-spendhook"].(*monitoring.ServiceMonitor)
	service := found["Service hooks-spendhook-admin"].(*core.Service)
	if service.Labels[monitor.Spec.JobLabel] != "spendhook" {
		t.Errorf("the job is %q", service.Labels[monitor.Spec.JobLabel])
	}
	for key, value := range monitor.Spec.Selector.MatchLabels {
		if service.Labels[key] != value {
			t.Errorf("the monitor does not select the service by %s", key)
		}
	}
}

// Pods have what the values add to them, and the ways in lead to the service.
func TestChartExtras(t *testing.T) {
	found := render(t, everything+relays+"fullnameOverride: webhooks\n")
	d := found["Deployment webhooks"].(*apps.Deployment)
	pod := d.Spec.Template.Spec
	c := pod.Containers[0]
	has := func(env core.EnvVar) bool { return env.Name == "SSL_CERT_DIR" && env.Value == "/etc/extra" }
	if d.Spec.Replicas != nil || d.Spec.Strategy.RollingUpdate.MaxSurge.IntVal != 2 || d.Spec.Template.Labels["team"] != "payments" ||
		pod.PriorityClassName != "high" || *pod.SecurityContext.RunAsUser != 1000 || *c.SecurityContext.RunAsUser != 1000 ||
		c.LivenessProbe.TimeoutSeconds != 20 || c.LivenessProbe.PeriodSeconds != 10 || !slices.ContainsFunc(c.Env, has) ||
		!slices.ContainsFunc(c.VolumeMounts, func(m core.VolumeMount) bool { return m.MountPath == "/etc/extra" }) {
		t.Errorf("the deployment: %+v", d.Spec)
	}
	if job := found["Job webhooks-migration"].(*batch.Job).Spec.Template; !slices.ContainsFunc(job.Spec.Containers[0].Env, has) || job.Spec.PriorityClassName != "high" {
		t.Errorf("the migration: %+v", job)
	}
	if relay := found["Deployment webhooks-relay"].(*apps.Deployment).Spec; relay.Template.Spec.PriorityClassName != "high" || relay.Template.Labels["team"] != "payments" {
		t.Errorf("the relay: %+v", relay)
	}
	if a := found["HorizontalPodAutoscaler webhooks"].(*autoscaling.HorizontalPodAutoscaler).Spec; a.ScaleTargetRef.Name != "webhooks" ||
		*a.MinReplicas != 3 || a.MaxReplicas != 9 || *a.Metrics[0].Resource.Target.AverageUtilization != 50 {
		t.Errorf("the autoscaler: %+v", a)
	}
	service := found["Service webhooks"].(*core.Service).Spec.Ports[0]
	in := found["Ingress webhooks"].(*networking.Ingress).Spec
	if back := in.Rules[1].HTTP.Paths[0].Backend.Service; *in.IngressClassName != "nginx" || in.Rules[1].Host != "hooks.example.org" ||
		back.Name != "webhooks" || back.Port.Name != service.Name || in.TLS[0].SecretName != "hooks" || len(in.TLS[0].Hosts) != 2 {
		t.Errorf("the ingress: %+v", in)
	}
	r := found["TLSRoute webhooks"].(*route)
	if back := r.Spec.Rules[0].BackendRefs[0]; r.APIVersion != "gateway.networking.k8s.io/v1alpha2" || r.Spec.ParentRefs[0]["name"] != "public" ||
		r.Spec.Hostnames[0] != "hooks.example.com" || back.Name != "webhooks" || back.Port != int(service.Port) {
		t.Errorf("the route: %+v", r)
	}
}

func TestChartStrategies(t *testing.T) {
	d := render(t, least+"strategy: {type: Recreate}\nprobes: {startup: null}\n")["Deployment hooks-spendhook"].(*apps.Deployment)
	if s := d.Spec.Strategy; s.Type != apps.RecreateDeploymentStrategyType || s.RollingUpdate != nil || d.Spec.Template.Spec.Containers[0].StartupProbe.HTTPGet == nil {
		t.Errorf("%+v", d.Spec)
	}
}

// The relays have the settings and secrets of the values.
func TestChartRelay(t *testing.T) {
	found := render(t, everything+relays)
	var settings, want map[string]any
	if err := yaml.Unmarshal([]byte(found["ConfigMap hooks-spendhook-relay"].(*core.ConfigMap).Data["relay.yml"]), &settings); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal([]byte(relay), &want); err != nil {
		t.Fatal(err)
	}
	if want := want["relay"].(map[string]any)["config"]; !reflect.DeepEqual(settings, want) {
		t.Errorf("the settings are %v, want %v", settings, want)
	}
	d := found["Deployment hooks-spendhook-relay"].(*apps.Deployment)
	pod := d.Spec.Template.Spec
	paths := map[string]string{}
	for _, m := range pod.Containers[0].VolumeMounts {
		paths[m.Name] = m.MountPath
	}
	for _, v := range pod.Volumes {
		switch {
		case v.ConfigMap != nil && v.ConfigMap.Name == "hooks-spendhook-relay" && paths[v.Name] == "/etc/spendhook/relay.yml":
		case v.Secret != nil && v.Secret.SecretName == "relay" && paths[v.Name] == "/etc/spendhook/relay-secrets":
		default:
			t.Errorf("unexpected volume %+v at %s", v, paths[v.Name])
		}
	}
	if *d.Spec.Replicas != 2 || len(pod.Volumes) != 2 || !slices.Equal(pod.Containers[0].Args, []string{"relay", "--config", "/etc/spendhook/relay.yml"}) {
		t.Errorf("the deployment: %+v", d.Spec)
	}
}

// What selects pods of the daemon selects none of the relay, and the other way round.
func TestChartTellsRelaysApart(t *testing.T) {
	found := render(t, everything+relays)
	daemons, relays := found["Deployment hooks-spendhook"].(*apps.Deployment), found["Deployment hooks-spendhook-relay"].(*apps.Deployment)
	for name, object := range found {
		var labels map[string]string
		switch o := object.(type) {
		case *apps.Deployment:
			labels = o.Spec.Selector.MatchLabels
		case *core.Service:
			labels = o.Spec.Selector
		case *policy.PodDisruptionBudget:
			labels = o.Spec.Selector.MatchLabels
		case *networking.NetworkPolicy:
			labels = o.Spec.PodSelector.MatchLabels
		default:
			continue
		}
		ofRelay := strings.HasSuffix(name, "-relay")
		if selects(labels, daemons.Spec.Template.Labels) == ofRelay || selects(labels, relays.Spec.Template.Labels) != ofRelay {
			t.Errorf("%s selects %v", name, labels)
		}
	}
	for _, d := range []*apps.Deployment{daemons, relays} {
		if spread := d.Spec.Template.Spec.TopologySpreadConstraints; len(spread) != 1 || !selects(spread[0].LabelSelector.MatchLabels, d.Spec.Template.Labels) {
			t.Errorf("%s spreads by %+v", d.Name, spread)
		}
	}
	monitor := found["ServiceMonitor hooks-spendhook-relay"].(*monitoring.ServiceMonitor)
	job := monitor.Spec.Endpoints[0].RelabelConfigs
	if len(job) != 1 || job[0].TargetLabel != "job" || *job[0].Replacement != "spendhook-relay" {
		t.Errorf("the job of the relays: %+v", job)
	}
	for name, object := range found {
		service, ok := object.(*core.Service)
		if ok && selects(monitor.Spec.Selector.MatchLabels, service.Labels) != strings.HasSuffix(name, "-relay") {
			t.Errorf("the monitor of the relays: %s", name)
		}
		daemon := found["ServiceMonitor hooks-spendhook"].(*monitoring.ServiceMonitor)
		if ok && selects(daemon.Spec.Selector.MatchLabels, service.Labels) != strings.HasSuffix(name, "-admin") {
			t.Errorf("the monitor of the daemon: %s", name)
		}
	}
}

// selects reports whether a selector matches labels.
func selects(selector, labels map[string]string) bool {
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return true
}

// A relay reaches the API, though only some peers may.
func TestChartLetsRelaysIn(t *testing.T) {
	found := render(t, everything+relays)
	relays := found["Deployment hooks-spendhook-relay"].(*apps.Deployment).Spec.Template.Labels
	daemons := found["Deployment hooks-spendhook"].(*apps.Deployment).Spec.Template.Labels
	in := slices.ContainsFunc(found["NetworkPolicy hooks-spendhook"].(*networking.NetworkPolicy).Spec.Ingress, func(r networking.NetworkPolicyIngressRule) bool {
		return r.Ports[0].Port.StrVal == "api" && len(r.From) == 1 && r.From[0].PodSelector != nil && selects(r.From[0].PodSelector.MatchLabels, relays)
	})
	egress := found["NetworkPolicy hooks-spendhook-relay"].(*networking.NetworkPolicy).Spec.Egress
	out := slices.ContainsFunc(egress, func(r networking.NetworkPolicyEgressRule) bool {
		return r.Ports[0].Port.IntVal == 8443 && len(r.To) == 1 && r.To[0].PodSelector != nil && selects(r.To[0].PodSelector.MatchLabels, daemons)
	})
	broker := slices.ContainsFunc(egress, func(r networking.NetworkPolicyEgressRule) bool { return r.Ports[0].Port.IntVal == 9092 })
	if !in || !out || !broker {
		t.Errorf("a relay may enter: %v, leave: %v, reach its broker: %v", in, out, broker)
	}
}

func TestChartRefuses(t *testing.T) {
	for values, want := range map[string]string{
		"storage: {url: a}\ntls: {existingSecret: a}":                                       "set redis.url",
		"redis: {url: a}\ntls: {existingSecret: a}":                                         "set storage.url",
		"redis: {url: a}\nstorage: {url: a}":                                                "set tls.existingSecret",
		least + "config: {listen: ':80'}":                                                   "listen",
		least + "config: {tls: {cert_file: a}}":                                             "cert_file",
		least + "replica: 2":                                                                "replica",
		least + "replicas: 0":                                                               "replicas",
		least + "networkPolicy: {enable: true}":                                             "enable",
		least + "image: {repository: ''}":                                                   "repository",
		least + "service: {type: ExternalName}":                                             "type",
		least + "podDisruptionBudget: {minReplica: 1}":                                      "minReplica",
		least + "ingress: {enabled: true}":                                                  "set ingress.hosts",
		least + "gateway: {enabled: true, hostnames: [a]}":                                  "set gateway.parentRefs",
		least + "gateway: {kind: TCPRoute}":                                                 "kind",
		least + "probes: {liveness: {httpGet: {path: /}}}":                                  "httpGet",
		least + "probes: {live: {}}":                                                        "live",
		least + "relay: {enabled: true}":                                                    "set relay.config.url",
		least + "relay: {enabled: true, existingSecret: a, config: {url: a}}":               "set relay.config.sources",
		least + "relay: {enabled: true, config: {url: a, sources: {a: {}}}}":                "set relay.existingSecret",
		least + "relay: {config: {admin_listen: ':80'}}":                                    "admin_listen",
		least + "relay: {config: {sources: {a: {rabbitmq: {url: 'amqp://u:p@broker'}}}}}":   "url",
		least + "relay: {config: {sources: {a: {postgres: {url: 'postgres://u:p@host'}}}}}": "url",
		least + "relay: {replicas: 0}":                                                      "replicas",
	} {
		if out, err := helm(t, values, "template", "hooks", "spendhook"); err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v\n%s", values, err, out)
		}
	}
}
