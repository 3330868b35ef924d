package config_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"spendhook/config"
)

func TestSecretsFromFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	c, err := config.Load("", []string{
		"SPENDHOOK_REDIS_URL_FILE=" + file("redis", "redis://:hunter2@h:6379\n"),
		"SPENDHOOK_STORAGE_URL_FILE=" + file("storage", " postgres://u:hunter2@h/d "),
		"SPENDHOOK_EGRESS_PROXY_URL_FILE=" + file("proxy", "http://u:hunter2@p:3128"),
		"SPENDHOOK_CONSOLE_LOGIN_ISSUER=https://login.example.com", "SPENDHOOK_CONSOLE_LOGIN_CLIENT_ID=hooks", "SPENDHOOK_PUBLIC_URL=https://h",
		"SPENDHOOK_CONSOLE_LOGIN_CLIENT_SECRET_FILE=" + file("login", "hunter2\n"), "SPENDHOOK_CONSOLE_LOGIN_ROLES=[{group: a, role: operator}]",
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Redis.URL.Reveal() + " " + c.Storage.URL.Reveal() + " " + c.Egress.ProxyURL.Reveal() + " " + c.Console.Login.ClientSecret.Reveal(); got != "redis://:hunter2@h:6379 postgres://u:hunter2@h/d http://u:hunter2@p:3128 hunter2" {
		t.Errorf("read %q", got)
	}
	_, err = config.Load("", []string{
		"SPENDHOOK_REDIS_URL=redis://h", "SPENDHOOK_REDIS_URL_FILE=" + file("other", "redis://h"),
		"SPENDHOOK_STORAGE_URL_FILE=" + filepath.Join(dir, "none"), "SPENDHOOK_EGRESS_PROXY_URL_FILE=" + file("empty", "\n"),
	}, nil)
	wantProblems(t, err, []string{
		"redis.url_file: redis.url is set too",
		"storage.url_file: open ",
		"egress.proxy_url_file: ",
	})
}

func TestMisspeltVariablesAreRefused(t *testing.T) {
	t.Parallel()
	service := []string{
		"SPENDHOOK_SERVICE_HOST=10.0.0.1", "SPENDHOOK_SERVICE_PORT=80", "SPENDHOOK_SERVICE_PORT_HTTP=80", "SPENDHOOK_PORT=tcp://10.0.0.1:80",
		"SPENDHOOK_PORT_80_TCP=tcp://10.0.0.1:80", "SPENDHOOK_PORT_80_TCP_ADDR=10.0.0.1", "SPENDHOOK_ADMIN_SERVICE_HOST=10.0.0.1",
		"SPENDHOOK_ADMIN_PORT_9090_TCP_PROTO=tcp", "SPENDHOOK_TOKEN=x", "SPENDHOOK_CONFIG=", "SPENDHOOK_EMPTY=",
	}
	if _, err := config.Load("", service, nil); err != nil {
		t.Errorf("what Kubernetes sets: %v", err)
	}
	_, err := config.Load("", []string{"SPENDHOOK_LOG_LEVL=debug", "SPENDHOOK_SOMETHING_ELSE=x", "SPENDHOOK_HOST_PORT_X=1"}, nil)
	wantProblems(t, err, []string{
		"SPENDHOOK_LOG_LEVL: there is no such setting",
		"SPENDHOOK_SOMETHING_ELSE: there is no such setting",
		"SPENDHOOK_HOST_PORT_X: there is no such setting",
	})
}

func TestDaysAndWeeks(t *testing.T) {
	t.Parallel()
	c, err := config.Load("", []string{"SPENDHOOK_EVENTS_RETENTION=1w2d", "SPENDHOOK_DELIVERY_SCHEDULE=5s, 0.5d,1d12h"}, map[string]string{"delivery.dead_retention": "2w"})
	if err != nil {
		t.Fatal(err)
	}
	const day = 24 * time.Hour
	if c.Events.Retention != 9*day || c.Delivery.DeadRetention != 14*day || c.Delivery.Schedule[1] != day/2 || c.Delivery.Schedule[2] != day*3/2 {
		t.Errorf("read %v, %v, %v", c.Events.Retention, c.Delivery.DeadRetention, c.Delivery.Schedule)
	}
	for _, bad := range []string{"d", "1dd", "1x", "-", "w1", "1 d"} {
		if _, err := config.Load("", []string{"SPENDHOOK_EVENTS_RETENTION=" + bad}, nil); err == nil {
			t.Errorf("%q is a duration", bad)
		}
	}
}
