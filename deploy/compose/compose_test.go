// Package compose_test checks the compose file, and runs its services on this machine without
// containers.
package compose_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"sigs.k8s.io/yaml"

	"spendhook/deploy/internal/daemontest"
	"spendhook/internal/pgtest"
)

func load(t *testing.T) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{"compose.yaml"}, cli.WithResolvedPaths(true))
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return project
}

func TestComposeFile(t *testing.T) {
	t.Parallel()
	project := load(t)
	var replicas []string
	for name, s := range project.Services {
		if !regexp.MustCompile(`^(spendhook:latest|[a-z/]+:v?\d+\.\d+.*|postgres:\d+-alpine)$`).MatchString(s.Image) {
			t.Errorf("%s: the image %s has no version", name, s.Image)
		}
		for _, p := range s.Ports {
			if p.HostIP != "127.0.0.1" {
				t.Errorf("%s: port %s is published on %q", name, p.Published, p.HostIP)
			}
		}
		for _, v := range s.Volumes {
			if _, err := os.Stat(v.Source); v.Type == types.VolumeTypeBind && err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if s.Environment["SPENDHOOK_ADMIN_LISTEN"] != nil {
			replicas = append(replicas, name+":9090")
		}
	}
	var prometheus struct {
		ScrapeConfigs []struct {
			JobName       string `json:"job_name"`
			StaticConfigs []struct {
				Targets []string `json:"targets"`
			} `json:"static_configs"`
		} `json:"scrape_configs"`
	}
	text, err := os.ReadFile("prometheus.yml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &prometheus); err != nil {
		t.Fatal(err)
	}
	slices.Sort(replicas)
	scraped := prometheus.ScrapeConfigs[0]
	if scraped.JobName != "spendhook" || !slices.Equal(scraped.StaticConfigs[0].Targets, replicas) || len(replicas) != 2 {
		t.Errorf("Prometheus scrapes %+v, the replicas are %v", scraped, replicas)
	}
}

// services starts the services of the file as processes instead of containers.
type services struct {
	*testing.T

	project *types.Project
	binary  string
	replace *strings.Replacer // replaces the addresses and paths of the containers
	dir     string
}

// start starts Redis, with the command of the file, and PostgreSQL.
func start(t *testing.T) services {
	t.Helper()
	dir := t.TempDir()
	h := services{T: t, project: load(t), binary: filepath.Join(dir, "spendhook"), dir: dir}
	daemontest.Build(t, h.binary)
	socket := filepath.Join(dir, "redis.sock")
	command := h.project.Services["redis"].Command
	redis := exec.CommandContext(t.Context(), command[0], append(slices.Clone(command[1:]), "--port", "0", "--unixsocket", socket, "--dir", dir)...)
	if err := redis.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = redis.Process.Kill() // it may have ended
		_ = redis.Wait()
	})
	database, remove, err := pgtest.Launch()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	h.replace = strings.NewReplacer(
		"redis://redis:6379/0", "unix://"+socket+"?db=0",
		"postgres://spendhook:spendhook@postgres:5432/spendhook?sslmode=disable", database,
		"/init/", filepath.Join(dir, "init")+"/",
		":8443", "127.0.0.1:0", ":9090", "127.0.0.1:0",
		"10.213.83.0/24", "127.0.0.1/32,::1/128",
	)
	return h
}

// command returns the command of a service, with a data directory of its own.
func (h services) command(service, data string) *exec.Cmd {
	h.Helper()
	s := h.project.Services[service]
	args := slices.Clone(s.Command)
	for i, arg := range args {
		if args[i] = h.replace.Replace(arg); arg == "/data" {
			args[i] = data
		}
	}
	cmd := exec.CommandContext(h.Context(), h.binary, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "SPENDHOOK_DATA_DIR=" + data}
	for name, value := range s.Environment {
		if name == "SPENDHOOK_PUBLIC_URL" || name == "SPENDHOOK_DATA_DIR" {
			continue // this test uses another port
		}
		cmd.Env = append(cmd.Env, name+"="+h.replace.Replace(*value))
	}
	return cmd
}

// The services of the file deliver an event to the receiver. One replica registers the
// subscriber, and the other one accepts the event.
func TestComposeDelivers(t *testing.T) {
	h := start(t)
	initDir := filepath.Join(h.dir, "init")
	var client string
	for range 2 { // a second 'up' runs init again
		out, err := h.command("init", initDir).CombinedOutput()
		if err != nil {
			t.Fatalf("init: %v\n%s", err, out)
		}
		found := regexp.MustCompile(`(?m)^client (\S+)$`).FindSubmatch(out)
		if found == nil || (client != "" && client != string(found[1])) {
			t.Fatalf("the client was %q, now:\n%s", client, out)
		}
		client = string(found[1])
	}
	first := daemontest.Start(t, h.command("spendhook-1", filepath.Join(h.dir, "data-1")))
	second := daemontest.Start(t, h.command("spendhook-2", filepath.Join(h.dir, "data-2")))
	receiver, received := h.receiver()

	api := daemontest.NewClient(t, initDir)
	token := regexp.MustCompile(`"access_token":"([^"]+)"`).FindStringSubmatch(
		api.Post(t, "https://"+first.Address+"/oauth/token", "application/x-www-form-urlencoded", "grant_type=client_credentials&client_id="+client))
	if token == nil {
		t.Fatal("no token")
	}
	api.Token = token[1]
	api.Post(t, "https://"+first.Address+"/api/v1/subscribers", "application/json",
		fmt.Sprintf(`{"name":"receiver","callbackUrl":%q,"events":["PAYMENT_PAID"]}`, receiver))
	api.Post(t, "https://"+second.Address+"/api/v1/events", "application/json",
		fmt.Sprintf(`{"id":"my-1","event":"PAYMENT_PAID","timestamp":%q,"metadata":{"amount":"12.50"}}`, time.Now().UTC().Format(time.RFC3339)))
	select {
	case line := <-received:
		if !strings.Contains(line, "my-1") {
			t.Errorf("the receiver printed %s", line)
		}
	case <-time.After(daemontest.Patience):
		t.Error("the receiver got no delivery")
	}
	for _, d := range []*daemontest.Daemon{first, second} {
		if body := get(t, "http://"+d.Admin+"/readyz"); !strings.Contains(body, `"ready":true`) || !strings.Contains(body, `"warnings":[]`) {
			t.Errorf("readyz of a replica: %s", body)
		}
		d.Stop(time.Minute)
	}
}

// receiver starts the example receiver and returns its address and the lines that it prints.
func (h services) receiver() (url string, printed <-chan string) {
	h.Helper()
	cmd := h.command("receiver", filepath.Join(h.dir, "unused"))
	errs, err := cmd.StderrPipe()
	if err != nil {
		h.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		h.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
	first := daemontest.Lines(errs)
	select {
	case line := <-first:
		url = strings.TrimPrefix(line, "listening on ")
	case <-time.After(daemontest.Patience):
		h.Fatal("the receiver does not listen")
	}
	return url, daemontest.Lines(out)
}

func get(t *testing.T, url string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), daemontest.Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}
