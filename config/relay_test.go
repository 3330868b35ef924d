package config_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"spendhook/config"
	"spendhook/relay/mapping"
)

// relayFile copies a fixture, with a directory of secrets in the place of /run/secrets.
func relayFile(t *testing.T, file string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"token": "hunter2-token\n", "client-secret": " hunter2-client ", "kafka-password": "hunter2-kafka",
		"amqp-url": "amqps://u:hunter2@mq/\n", "postgres-url": "postgres://u:hunter2@db/app", "empty": " \n", "two-lines": "hunter2\nhunter2",
		"relay.yml": strings.ReplaceAll(read(t, file), "/run/secrets/", dir+"/"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "relay.yml")
}

func TestGoodRelayFiles(t *testing.T) {
	t.Parallel()
	for _, file := range files(t, "relay-good") {
		if _, err := config.LoadRelay(relayFile(t, file), nil, true); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// TestBadRelayFiles expects exactly the problems in the file's "# want:" lines, and no secret.
func TestBadRelayFiles(t *testing.T) {
	t.Parallel()
	for _, file := range files(t, "relay-bad") {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			_, err := config.LoadRelay(relayFile(t, file), nil, true)
			wantProblems(t, err, wanted(t, file))
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("a secret is in: %v", err)
			}
		})
	}
}

// TestFullRelayFile keeps the explained file true: all keys, with the defaults as they are, and expressions that compile.
func TestFullRelayFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join("testdata", "relay-good", "full.yml")
	text := read(t, file)
	for name, initial := range relayKeys(reflect.TypeFor[config.Relay]()) {
		if !strings.Contains(text, " "+name+": "+initial) && !strings.Contains(text, "\n"+name+": "+initial) && !strings.Contains(text, name+":\n") {
			t.Errorf("%s does not explain %s with its default %q", file, name, initial)
		}
	}
	r, err := config.LoadRelay(relayFile(t, file), nil, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range r.Sources {
		if _, err := mapping.New(mapping.Options{Fields: mapping.Fields(s.Mapping), Companies: s.Companies}); err != nil {
			t.Errorf("%s: %v", s.Name, err)
		}
	}
}

// relayKeys lists the settings of a struct with their defaults.
func relayKeys(s reflect.Type) map[string]string {
	keys := map[string]string{}
	for field := range s.Fields() {
		inner := field.Type
		if name := field.Tag.Get("yaml"); name != "" {
			keys[name] = field.Tag.Get("default")
		}
		if inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Slice {
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Struct {
			maps.Copy(keys, relayKeys(inner))
		}
	}
	return keys
}

func TestRelaySettings(t *testing.T) {
	t.Parallel()
	r, err := config.LoadRelay(relayFile(t, "testdata/relay-good/full.yml"), nil, true)
	if err != nil {
		t.Fatal(err)
	}
	payments, cards, outbox := r.Sources[0], r.Sources[1], r.Sources[2]
	got := fmt.Sprint(
		r.URL, r.AdminListen, r.Log, payments.Name, payments.ClientID, payments.Token.Reveal(), payments.ClientSecret.Reveal(),
		payments.Kafka.Topics, payments.Kafka.SASL.Password.Reveal(), payments.RabbitMQ == nil, payments.Mapping.Event,
		cards.Name, cards.Token.Reveal(), cards.RabbitMQ.URL.Reveal(), len(cards.Companies),
		outbox.Name, outbox.Token.Reveal(), outbox.Postgres.URL.Reveal(), outbox.Postgres.Table, mapping.Fields(outbox.Mapping),
	)
	want := fmt.Sprint(
		"https://hooks.example.com", "127.0.0.1:9091", config.Log{Level: "info", Format: "auto"}, "payments", "relay-payments", "", "hunter2-client",
		[]string{"payments"}, "hunter2-kafka", true, `"PAYMENT_" + headers["type"]`,
		"cards", "hunter2-token", "amqps://u:hunter2@mq/", 2,
		"outbox", "hunter2-token", "postgres://u:hunter2@db/app", "spendhook_outbox", mapping.Fields{},
	)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if text := fmt.Sprintf("%v %+v %#v", r, *payments.Kafka.SASL, *outbox.Postgres); strings.Contains(text, "hunter2") {
		t.Errorf("a secret is in %s", text)
	}
}

func TestEnvironmentOverridesTheRelayFile(t *testing.T) {
	t.Parallel()
	file := relayFile(t, "testdata/relay-good/minimal.yml")
	r, err := config.LoadRelay(file, []string{
		"SPENDHOOK_RELAY_URL=https://env", "SPENDHOOK_RELAY_ADMIN_LISTEN=127.0.0.1:1", "SPENDHOOK_RELAY_LOG_LEVEL=debug",
		"SPENDHOOK_RELAY_SERVICE_HOST=10.0.0.1", "SPENDHOOK_RELAY_PORT=tcp://10.0.0.1:80", "SPENDHOOK_RELAY_EMPTY=", "SPENDHOOK_URL=x", "OTHER=x",
	}, true)
	if err != nil || r.URL != "https://env" || r.AdminListen != "127.0.0.1:1" || r.Log.Level != "debug" {
		t.Errorf("read %s, %s, %s, %v", r.URL, r.AdminListen, r.Log.Level, err)
	}
	_, err = config.LoadRelay(file, []string{"SPENDHOOK_RELAY_LOG_LEVL=debug", "SPENDHOOK_RELAY_URL=http://example.com"}, true)
	wantProblems(t, err, []string{"SPENDHOOK_RELAY_LOG_LEVL: there is no such setting", "url: refused: "})
}

func TestRelayHasAtMost50Sources(t *testing.T) {
	t.Parallel()
	for n, want := range map[int][]string{50: nil, 51: {"sources: has 51 sources, want at most 50"}} {
		var text strings.Builder
		text.WriteString("url: https://h\ntoken_file: /run/secrets/token\nsources:\n")
		for i := range n {
			fmt.Fprintf(&text, "  s%d: {companies: [6f1c2a7e-3b0d-4a53-9c1c-0f5b8f0d2a11], postgres: {url: 'postgres:///%d'}}\n", i, i)
		}
		file := filepath.Join(t.TempDir(), "c.yml")
		if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := config.LoadRelay(relayFile(t, file), nil, true)
		if want == nil {
			if err != nil {
				t.Error(err)
			}
			continue
		}
		wantProblems(t, err, want)
	}
}

func FuzzLoadRelay(f *testing.F) {
	for _, dir := range []string{"relay-good", "relay-bad"} {
		names, err := filepath.Glob(filepath.Join("testdata", dir, "*.yml"))
		if err != nil {
			f.Fatal(err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(text)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		file := filepath.Join(t.TempDir(), "c.yml")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := config.LoadRelay(file, nil, true)
		if err != nil {
			return
		}
		for _, s := range r.Sources {
			kinds := 0
			for _, has := range []bool{s.Kafka != nil, s.RabbitMQ != nil, s.Postgres != nil} {
				if has {
					kinds++
				}
			}
			if kinds != 1 || s.Name == "" || len(s.Companies) == 0 {
				t.Errorf("accepted %+v", s)
			}
		}
	})
}
