package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// daemon is one spendhook process.
type daemon struct {
	*process
	daemonOptions
	base, admin string // URLs of the API and of the admin listener
	token       string
}

// daemonOptions are the options of a daemon.
type daemonOptions struct {
	program, dir, id, redis string
	storage                 string   // a database's URL; empty: SQLite in the data directory
	settings                string   // of the delivery section of the configuration
	more                    string   // further lines of the configuration
	address                 string   // of the API; empty: a free port
	variables               []string // environment variables, besides our own
	ca                      string   // file with the CA certificate of the receivers
}

func (o daemonOptions) config() string { return o.dataDir() + ".yml" }

func (o daemonOptions) dataDir() string { return filepath.Join(o.dir, o.id) }

const scopes = "events:read events:write subscribers:read subscribers:write deliveries:read cards:read cards:write reimbursements:read platform"

// startDaemon returns when the daemon is ready. Its log is a new file each time.
func startDaemon(ctx context.Context, o daemonOptions) (*daemon, error) {
	d := &daemon{daemonOptions: o}
	file, err := o.configure()
	if err != nil {
		return nil, err
	}
	log := o.id + "-" + strconv.FormatInt(time.Now().UnixMilli(), 10)
	cmd := exec.Command(o.program, "serve", "--config", file) //nolint:gosec,noctx // our own arguments; it is ended by its pid
	cmd.Env = o.environment()
	if d.process, err = startCommand(o.dir, log, cmd); err != nil {
		return nil, err
	}
	if err = d.awaitReady(ctx); err == nil {
		d.token, err = mint(ctx, o.program, file, scopes)
	}
	if err != nil {
		d.Kill()
		return nil, err
	}
	return d, nil
}

// restart starts a daemon that has ended again, at the same address.
func (d *daemon) restart(ctx context.Context) (*daemon, error) {
	o := d.daemonOptions
	o.address = strings.TrimPrefix(d.base, "http://")
	return startDaemon(ctx, o)
}

// sealingKey must be the same for all replicas.
const sealingKey = "YmVuY2gtYmVuY2gtYmVuY2gtYmVuY2gtYmVuY2gtMTI="

func (o daemonOptions) configuration() string {
	return fmt.Sprintf(`dev: true
listen: %s
admin_listen: 127.0.0.1:0
data_dir: %s
redis: %s
log: {format: json}
subscribers: {max_per_company: 1000}
limits: {client_rate: 1000000, client_burst: 1000000, company_rate: 1000000, company_burst: 1000000}
delivery: {%s}
storage: {url: %q}
encryption: {key: "%s"}
%s`, cmp.Or(o.address, "127.0.0.1:0"), o.dataDir(), o.redis, o.settings, o.storage, sealingKey, o.more)
}

// configure writes the daemon's configuration and returns its file.
func (o daemonOptions) configure() (string, error) {
	return o.config(), os.WriteFile(o.config(), []byte(o.configuration()), 0o600)
}

// environment returns the environment variables of the daemon. A setting that an older program
// lacks is set here, not in the configuration: the program ignores an unknown variable.
func (o daemonOptions) environment() []string {
	env := append(append(os.Environ(), "SPENDHOOK_LIMITS_COMPANY_BACKLOG=1000000000"), o.variables...)
	if o.ca != "" {
		env = append(env, "SSL_CERT_FILE="+o.ca)
	}
	return env
}

// mintFor makes a token that is tied to the i-th company.
func (d *daemon) mintFor(ctx context.Context, i int) (string, error) {
	return mint(ctx, d.program, d.config(), strings.TrimSuffix(scopes, " platform"), "--company", company(i))
}

func mint(ctx context.Context, program, config, scopes string, more ...string) (string, error) {
	args := append([]string{"token", "--config", config, "--ttl", "24h", "--scope", scopes}, more...)
	cmd := exec.CommandContext(ctx, program, args...) //nolint:gosec // our own arguments
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("mint a token: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// awaitReady reads the addresses from the log, then waits until the daemon is ready.
func (d *daemon) awaitReady(ctx context.Context) error {
	line, err := d.awaitLine(ctx, `"msg":"listening"`)
	if err != nil {
		return err
	}
	var listening struct {
		Address string `json:"address"`
		Admin   string `json:"admin_address"`
	}
	if err := json.Unmarshal(line, &listening); err != nil {
		return fmt.Errorf("read the addresses of %s: %w", d.name, err)
	}
	d.base, d.admin = "http://"+listening.Address, "http://"+listening.Admin
	return await(ctx, startTime, func() (bool, error) {
		_, err := get(ctx, d.admin+"/readyz")
		return err == nil, d.alive()
	})
}

// replica returns the daemon's replica id.
func (d *daemon) replica() (string, error) {
	id, err := os.ReadFile(filepath.Join(d.dataDir(), "replica-id"))
	return strings.TrimSpace(string(id)), err
}

// delivered returns how many deliveries this process has recorded as delivered.
func (d *daemon) delivered(ctx context.Context) (int64, error) {
	return d.count(ctx, `spendhook_deliveries_total{status="DELIVERED"}`)
}

// count reads one series of the daemon's metrics.
func (d *daemon) count(ctx context.Context, series string) (int64, error) {
	text, err := get(ctx, d.admin+"/metrics")
	if err != nil {
		return 0, err
	}
	return metric(string(text), series)
}

// metric reads one counter of a Prometheus exposition.
func metric(text, series string) (int64, error) {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			return int64(v), err
		}
	}
	return 0, errors.New("no metric " + series)
}

// profile writes a CPU profile of the next seconds to a file.
func (d *daemon) profile(ctx context.Context, length time.Duration, file string) error {
	seconds := max(1, int(length.Seconds()))
	text, err := get(ctx, d.admin+"/debug/pprof/profile?seconds="+strconv.Itoa(seconds))
	if err != nil {
		return fmt.Errorf("take a profile: %w", err)
	}
	return os.WriteFile(file, text, 0o600)
}

// subscription is a subscriber of one company to one event type.
type subscription struct {
	company          int
	name, url, event string
	filter           string // "": none
	perSecond, burst int    // of its rate limit; 0: none
}

// subscribe registers a subscriber and returns its id.
func (d *daemon) subscribe(ctx context.Context, s subscription) (id string, err error) {
	in := map[string]any{"companyUuid": company(s.company), "name": s.name, "callbackUrl": s.url, "events": []string{s.event}}
	if s.filter != "" {
		in["filter"] = s.filter
	}
	if s.perSecond > 0 {
		in["rateLimit"] = map[string]int{"perSecond": s.perSecond, "burst": s.burst}
	}
	var out struct {
		UUID string `json:"uuid"`
	}
	err = d.call(ctx, http.MethodPost, "/api/v1/subscribers", in, &out)
	return out.UUID, err
}

// subscribeAll registers subscribers, many at once, and returns their ids.
func (d *daemon) subscribeAll(ctx context.Context, list []subscription) ([]string, error) {
	ids := make([]string, len(list))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(controlConns)
	for i, s := range list {
		group.Go(func() (err error) {
			ids[i], err = d.subscribe(ctx, s)
			return err
		})
	}
	return ids, group.Wait()
}

// deliveriesOf returns how many deliveries of a subscriber exist, in any status.
func (d *daemon) deliveriesOf(ctx context.Context, company, subscriber string) (int64, error) {
	var out struct {
		Total int64 `json:"total"`
	}
	err := d.call(ctx, http.MethodGet, "/api/v1/subscribers/"+subscriber+"/stats?companyUuid="+company, nil, &out)
	return out.Total, err
}

func (d *daemon) call(ctx context.Context, method, path string, in, out any) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, d.base+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+d.token)
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	text, err := do(req)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, out)
}

const controlConns = 32

// control is the client for all requests that are not load.
var control = &http.Client{Timeout: 5 * time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: controlConns}}

func get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	return do(req)
}

func do(req *http.Request) ([]byte, error) {
	resp, err := control.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %s: %s", req.Method, req.URL.Path, resp.Status, text)
	}
	return text, err
}
