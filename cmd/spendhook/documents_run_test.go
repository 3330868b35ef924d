//go:build examples

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// shellBlock finds the shell blocks of a document, each with the reason why it is not run, if any.
var shellBlock = regexp.MustCompile("(?ms)(?:^<!-- not run: ([^>]+) -->\n)?^```sh\n(.*?)^```$")

// Each shell block of the documents runs against a daemon, or has a reason why it does not run.
// TestRunbooks checks the blocks of the runbooks, which query a Prometheus.
func TestExamplesInDocumentsRun(t *testing.T) {
	t.Parallel()
	h := newInstallation(t, sharedRedis(t), "delivery: {schedule: [100ms]}\n")
	h.importData(t, spendLines(), "-").want(t, exitOK, "imported 6", "")
	w := newReader(t, h, h.start(t))
	all := documents(t)
	pages := make([]string, 0, len(all))
	for page := range all {
		if !strings.HasPrefix(page, "docs/runbooks/") {
			pages = append(pages, page)
		}
	}
	slices.Sort(pages)
	ran := 0
	for _, page := range pages {
		var script strings.Builder
		for i, m := range shellBlock.FindAllStringSubmatch(all[page], -1) {
			if m[1] == "" {
				fmt.Fprintf(&script, "echo '# block %d'\n%s\n", i+1, m[2])
				ran++
			}
		}
		if script.Len() > 0 {
			w.try(t, page, script.String())
		}
		if page == "docs/emitting.md" { // whose event the pages after it look at
			w.endpoint.awaits(t, 1)
		}
	}
	if ran < 12 {
		t.Errorf("%d blocks were run", ran)
	}
}

// documentReader runs the shell blocks of documents, each document in its own shell.
type documentReader struct {
	daemon   *running
	endpoint *endpoint
	dir      string
	env      []string
}

func newReader(t *testing.T, h installation, d *running) *documentReader {
	t.Helper()
	dir := t.TempDir()
	e := newEndpoint(t, nil)
	sub := e.subscribe(t, d, "PAYMENT_PAID").UUID.String()
	var client struct{ ID, Secret string }
	r := h.auth(t, "client", "create", "--name", "reader", "--company", developerCompany.String(), "--scope", "events:write deliveries:read events:read")
	if _, err := fmt.Sscanf(r.stdout, "client id      %s\nclient secret  %s", &client.ID, &client.Secret); err != nil {
		t.Fatalf("%v: %s", err, r.stdout)
	}
	w := &documentReader{daemon: d, endpoint: e, dir: dir}
	w.command(t, "spendhook", childVariable+"=1 exec "+os.Args[0]+` "$@"`)
	w.command(t, "curl", `exec /usr/bin/curl --fail-with-body "$@"`)
	w.env = append(os.Environ(),
		"PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"), "SPENDHOOK_DATA_DIR="+h.dir, "SPENDHOOK_REDIS="+h.redis,
		"SPENDHOOK_CONFIG="+filepath.Join(h.dir, "config.yml"), "SPENDHOOK_DEV=true",
		"SPENDHOOK_URL="+d.api, "SPENDHOOK_TOKEN="+d.token, "TOKEN="+d.token,
		"OPERATOR_TOKEN="+strings.TrimSpace(command(t, "", "token", "--data-dir", h.dir, "--scope", "operator platform").stdout),
		"PLATFORM_TOKEN="+strings.TrimSpace(command(t, "", "token", "--data-dir", h.dir, "--scope", "platform events:read deliveries:read").stdout),
		"CLIENT_ID="+client.ID, "CLIENT_SECRET="+client.Secret,
		"COMPANY="+developerCompany.String(), "UUID="+sub, "USER_UUID="+annUUID, "CARD="+cardUUID)
	w.try(t, "certificates", "spendhook certs dev && cp spendhook-certs/client.pem till.pem")
	w.file(t, "events.ndjson", eventLines(0, 3, time.Now()))
	w.file(t, "companies.ndjson", strings.SplitAfter(spendLines(), "\n")[0])
	w.file(t, "cards.ndjson", "")
	return w
}

func (w *documentReader) file(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join(w.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
}

func (w *documentReader) command(t *testing.T, name, body string) {
	t.Helper()
	w.file(t, filepath.Join("bin", name), "#!/bin/sh\n"+body+"\n")
}

func (w *documentReader) try(t *testing.T, page, script string) {
	t.Helper()
	script = strings.NewReplacer("http://127.0.0.1:8080", w.daemon.api, "http://127.0.0.1:9090", w.daemon.admin).Replace(script)
	cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir, cmd.Env = w.dir, w.env
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s\n--- of\n%s", page, err, out, script)
	}
}
