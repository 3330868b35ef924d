package main

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"go.yaml.in/yaml/v4"

	"spendhook/internal/partition"
)

const (
	monitoringDir = "../../deploy/monitoring"
	runbooksDir   = "../../docs/runbooks"
	maxAlerts     = 19
)

// consoleRoutes are the pages of the console.
var consoleRoutes = []string{
	"/console/", "/console/subscribers", "/console/subscribers/{uuid}", "/console/events", "/console/events/{companyUuid}/{id}",
	"/console/deliveries", "/console/deliveries/{id}", "/console/dead", "/console/tail", "/console/jobs", "/console/jobs/{uuid}",
	"/console/audit", "/console/event-types", "/console/quarantine", "/console/system",
}

// rule is a rule of Prometheus.
type rule struct {
	Record, Alert, Expr string
	For                 string
	Labels, Annotations map[string]string
}

func rulesOf(t *testing.T, file string) (rules []rule) {
	t.Helper()
	var content struct{ Groups []struct{ Rules []rule } }
	decoder := yaml.NewDecoder(strings.NewReader(readText(t, filepath.Join(monitoringDir, file))))
	if err := decoder.Decode(&content); err != nil {
		t.Fatal(err)
	}
	for _, g := range content.Groups {
		rules = append(rules, g.Rules...)
	}
	return rules
}

func readText(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// known are the names that rules, runbooks and dashboards may use: metrics, of
// docs/metrics.md, and recorded series.
func known(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, m := range regexp.MustCompile("\n\\| `(spendhook_[a-z0-9_]+)` \\| ([a-z]+)").FindAllStringSubmatch(readText(t, metricsFile), -1) {
		names[m[1]] = true
		if m[2] == "histogram" {
			names[m[1]+"_bucket"], names[m[1]+"_sum"], names[m[1]+"_count"] = true, true, true
		}
	}
	for _, r := range rulesOf(t, "rules.yaml") {
		names[r.Record] = true
	}
	return names
}

var seriesName = regexp.MustCompile(`spendhook[_:][a-z0-9_:]+`)

func wantKnown(t *testing.T, where, text string, names map[string]bool) {
	t.Helper()
	for _, name := range seriesName.FindAllString(text, -1) {
		if !names[name] {
			t.Errorf("%s names %s, which does not exist", where, name)
		}
	}
}

func TestEachAlertIsComplete(t *testing.T) {
	t.Parallel()
	names, tests := known(t), readText(t, filepath.Join(monitoringDir, "alerts_test.yaml"))+readText(t, filepath.Join(monitoringDir, "alerts_slow_test.yaml"))
	for _, r := range rulesOf(t, "rules.yaml") {
		wantKnown(t, r.Record, r.Expr, names)
	}
	alerts := rulesOf(t, "alerts.yaml")
	if len(alerts) > maxAlerts {
		t.Errorf("%d alerts, want %d at most", len(alerts), maxAlerts)
	}
	for _, a := range alerts {
		wantKnown(t, a.Alert, a.Expr+a.Annotations["summary"], names)
		if s := a.Labels["severity"]; s != "page" && s != "ticket" {
			t.Errorf("%s: severity %q", a.Alert, s)
		}
		if !strings.Contains(a.Annotations["summary"], "{{") {
			t.Errorf("%s: no value in the summary", a.Alert)
		}
		if !strings.HasSuffix(a.Annotations["runbook_url"], "}}/"+a.Alert+".md") {
			t.Errorf("%s: runbook_url is %s", a.Alert, a.Annotations["runbook_url"])
		}
		query := fmt.Sprintf(`ALERTS{alertname="%s",alertstate="firing"})`+"\n        eval_time: ", a.Alert)
		fires, misses := false, false
		for _, rest := range strings.Split(tests, query)[1:] {
			_, samples, _ := strings.Cut(rest, "exp_samples: ")
			fires, misses = fires || strings.HasPrefix(samples, "[{"), misses || strings.HasPrefix(samples, "[]")
		}
		if !fires || !misses {
			t.Errorf("the tests of alerts: %s fires %v, and does not on a near miss %v", a.Alert, fires, misses)
		}
	}
	if !strings.Contains(readText(t, filepath.Join(monitoringDir, "alerts.yaml")), fmt.Sprintf("sum(spendhook_partitions_owned) < %d\n", partition.Count)) {
		t.Errorf("no alert knows that there are %d partitions", partition.Count)
	}
}

// Prometheus's own tools find the files good, and each alert fires when it should.
func TestAlertRules(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"promtool", "check", "rules", "rules.yaml", "alerts.yaml"},
		{"promtool", "check", "config", "prometheus.yml"},
		{"promtool", "test", "rules", "alerts_test.yaml", "alerts_slow_test.yaml"},
		{"amtool", "check-config", "alertmanager.yml"},
	} {
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Dir = monitoringDir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v (scripts/ensure prometheus installs it)\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// Each alert has its runbook, and what a runbook names exists.
func TestRunbooks(t *testing.T) {
	t.Parallel()
	want := []string{"README"}
	for _, a := range rulesOf(t, "alerts.yaml") {
		want = append(want, a.Alert)
	}
	files, err := filepath.Glob(filepath.Join(runbooksDir, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, file := range files {
		have = append(have, strings.TrimSuffix(filepath.Base(file), ".md"))
	}
	slices.Sort(want)
	if slices.Sort(have); !slices.Equal(have, want) {
		t.Errorf("runbooks %v, want %v", have, want)
	}
	c := newBookCheck(t)
	for _, name := range have {
		c.check(t, name, readText(t, filepath.Join(runbooksDir, name+".md")))
	}
}

// The token of the runbooks permits every command of the runbooks, and each command names the company
// that it needs.
func TestCommandsOfRunbooks(t *testing.T) {
	t.Parallel()
	h := newInstallation(t, sharedRedis(t), "")
	d := h.start(t)
	readme := readText(t, filepath.Join(runbooksDir, "README.md"))
	scopes := regexp.MustCompile(`"(operator [^"]+)"`).FindStringSubmatch(readme)[1]
	token := secretFile(t, strings.TrimSpace(command(t, "", "token", "--data-dir", h.dir, "--scope", scopes).stdout))
	id := uuid.NewString()
	values := strings.NewReplacer("$COMPANY", developerCompany.String(), "$UUID", id, "$ID", "evt_1", "$DELIVERY", "evt_1."+id, "client.pem", token, "client.key", token)
	files, err := filepath.Glob(filepath.Join(runbooksDir, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, file := range files {
		for _, m := range commandLine.FindAllStringSubmatch(readText(t, file), -1) {
			rest, _, _ := strings.Cut(m[2], " #")
			args := append(strings.Fields(m[1]), strings.Fields(values.Replace(rest))...)
			help := command(t, "", append(strings.Fields(m[1]), "--help")...).stdout
			if !strings.Contains(help, "--token-file") {
				continue
			}
			if strings.Contains(help, "--yes") {
				args = append(args, "--yes")
			}
			tried++
			r := command(t, "", append(args, "--url", d.api, "--token-file", token)...)
			if r.code == exitUsage || r.code == exitNotAllowed || strings.Contains(r.stderr, "companyUuid") {
				t.Errorf("%s: %v: %d %s", filepath.Base(file), args, r.code, r.stderr)
			}
		}
	}
	if tried < 12 {
		t.Errorf("%d commands were tried", tried)
	}
}

// bookCheck knows what a runbook may name.
type bookCheck struct {
	names    map[string]bool
	settings map[string]bool
	api      []*regexp.Regexp
	console  []*regexp.Regexp
	admin    map[string]bool
}

func newBookCheck(t *testing.T) *bookCheck {
	t.Helper()
	c := &bookCheck{names: known(t), settings: map[string]bool{}, admin: map[string]bool{}}
	group := ""
	for line := range strings.Lines(readText(t, "../../config/testdata/good/full.yml")) {
		if m := regexp.MustCompile(`^(  )?(?:# )?([a-z][a-z0-9_]*):`).FindStringSubmatch(line); m == nil {
			continue
		} else if m[1] == "" {
			group = m[2]
			c.settings[group] = true
		} else {
			c.settings[group+"."+m[2]] = true
		}
	}
	for _, m := range regexp.MustCompile(`\n  (/[^:\n]+):\n`).FindAllStringSubmatch(readText(t, "../../api/openapi.yaml"), -1) {
		c.api = append(c.api, pathPattern(m[1]))
	}
	for _, route := range consoleRoutes {
		c.console = append(c.console, pathPattern(route))
	}
	for pattern := range (&admin{}).routes() {
		c.admin[strings.TrimPrefix(pattern, http.MethodGet+" ")] = true
	}
	return c
}

// pathPattern matches the paths of a route, with $X or <x> for what varies.
func pathPattern(route string) *regexp.Regexp {
	parts := strings.Split(route, "/")
	for i, part := range parts {
		if strings.HasPrefix(part, "{") {
			parts[i] = `[$<][^/]+`
		} else {
			parts[i] = regexp.QuoteMeta(part)
		}
	}
	return regexp.MustCompile("^" + strings.Join(parts, "/") + "$")
}

var (
	apiPath     = regexp.MustCompile(`(?:^|[\s'"` + "`" + `]|\$SPENDHOOK_URL)(/api/v\d/[^\s?'"` + "`" + `]*)`)
	consolePath = regexp.MustCompile(`/console/[a-z0-9/$A-Z<>-]*`)
	adminPath   = regexp.MustCompile(`\$ADMIN(/[a-z/]+)`)
	setting     = regexp.MustCompile("`([a-z]+(?:_[a-z]+)*(?:\\.[a-z0-9_]+)?)`")
	commandLine = regexp.MustCompile(`(?m)(?:^|[(` + "`" + `])spendhook ([a-z][a-z-]*(?: [a-z][a-z-]*)?)([^\n` + "`" + `)]*)`)
	flagName    = regexp.MustCompile(`--[a-z-]+`)
	heading     = []string{"## Meaning", "## Impact", "## Diagnosis", "## Mitigation", "## Over when"}
)

func (c *bookCheck) check(t *testing.T, name, text string) {
	t.Helper()
	if name != "README" {
		at := 0
		for _, h := range heading {
			next := strings.Index(text, "\n"+h+"\n")
			if next < at {
				t.Errorf("%s lacks %q in its place", name, h)
			}
			at = max(at, next)
		}
	}
	wantKnown(t, name, text, c.names)
	for _, m := range apiPath.FindAllStringSubmatch(text, -1) {
		if path := strings.TrimRight(m[1], ".,"); !strings.Contains(path, "/query") && !matches(c.api, path) {
			t.Errorf("%s names the route %s, which there is not", name, path)
		}
	}
	for _, path := range consolePath.FindAllString(text, -1) {
		if !matches(c.console, path) {
			t.Errorf("%s names the page %s, which there is not", name, path)
		}
	}
	for _, m := range adminPath.FindAllStringSubmatch(text, -1) {
		if !c.admin[m[1]] {
			t.Errorf("%s names %s of the admin listener, which there is not", name, m[1])
		}
	}
	for _, m := range setting.FindAllStringSubmatch(text, -1) {
		if group, _, dotted := strings.Cut(m[1], "."); (dotted && c.settings[group] || strings.HasPrefix(m[1], "admin_") || strings.HasPrefix(m[1], "shutdown_")) && !c.settings[m[1]] {
			t.Errorf("%s names the setting %s, which there is not", name, m[1])
		}
	}
	for _, m := range commandLine.FindAllStringSubmatch(text, -1) {
		c.command(t, name, strings.Fields(m[1]), m[2])
	}
}

// command asks the command line for the help of a command.
func (c *bookCheck) command(t *testing.T, name string, words []string, rest string) {
	t.Helper()
	help := command(t, "", append(slices.Clone(words), "--help")...)
	if help.code != exitOK || !strings.Contains(help.stdout, "Usage: spendhook "+strings.Join(words, " ")) {
		t.Errorf("%s names spendhook %s, which there is not", name, strings.Join(words, " "))
		return
	}
	for _, flag := range flagName.FindAllString(rest, -1) {
		if !strings.Contains(help.stdout, flag) {
			t.Errorf("%s: spendhook %s has no %s", name, strings.Join(words, " "), flag)
		}
	}
}

func matches(patterns []*regexp.Regexp, path string) bool {
	return slices.ContainsFunc(patterns, func(p *regexp.Regexp) bool { return p.MatchString(path) })
}
