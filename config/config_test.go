package config_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.yaml.in/yaml/v4"

	"spendhook/config"
	"spendhook/internal/invalid"
	"spendhook/internal/secret"
)

func TestGoodFiles(t *testing.T) {
	t.Parallel()
	open := map[string]bool{"empty.yml": true, "full.yml": true} // for commands that do not serve
	for _, file := range files(t, "good") {
		if _, err := config.Load(file, nil, nil); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if _, err := config.LoadDaemon(file, nil, nil); (err != nil) != open[filepath.Base(file)] {
			t.Errorf("%s, to serve: %v", file, err)
		}
	}
}

// TestFullFileNamesEverySetting keeps the explained file true: all keys, with
// the defaults as they are.
func TestFullFileNamesEverySetting(t *testing.T) {
	t.Parallel()
	file := filepath.Join("testdata", "good", "full.yml")
	got, err := config.Load(file, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(config.Default(), got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("the defaults in %s are others (-code +file):\n%s", file, diff)
	}
	text := read(t, file)
	for key := range keys(t) {
		name := key[strings.LastIndex(key, ".")+1:]
		if !strings.Contains(text, name+":") {
			t.Errorf("%s does not explain %s", file, key)
		}
	}
}

// TestBadFiles expects exactly the problems in the file's "# want:" lines.
func TestBadFiles(t *testing.T) {
	t.Parallel()
	for _, file := range files(t, "bad") {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			_, err := config.LoadDaemon(file, nil, nil)
			wantProblems(t, err, wanted(t, file))
		})
	}
}

func TestSyntaxErrorsNameFileAndLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"listen: [\n":          "line 2",
		"a: 1\n---\nb: 2\n":    "single YAML document",
		"redis: \"\xff\"":      "UTF-8",
		"- listen\n":           "want keys with values",
		"---\n":                "want keys with values",
		"\tlisten: 127.0.0.1:": "line 1",
	} {
		file := filepath.Join(t.TempDir(), "c.yml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := config.Load(file, nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", text, err, want)
		}
	}
	if _, err := config.Load("testdata/none.yml", nil, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v, want os.ErrNotExist", err)
	}
}

func TestFlagsOverrideTheEnvironmentWhichOverridesTheFile(t *testing.T) {
	t.Parallel()
	environ := []string{
		"SPENDHOOK_LISTEN=127.0.0.1:1", "SPENDHOOK_ADMIN_LISTEN=127.0.0.1:2", "SPENDHOOK_PUBLIC_URL=http://env",
		"SPENDHOOK_DELIVERY_SCHEDULE=1s, 2s", "SPENDHOOK_DELIVERY_JITTER=0.1", "SPENDHOOK_DELIVERY_SIGN_ED25519=true",
		"SPENDHOOK_EGRESS_ALLOW_CIDRS=10.0.0.0/8,fd00::/8", "SPENDHOOK_REDIS=redis://h",
		`SPENDHOOK_EVENTS_CATALOGUE=A, B`, `SPENDHOOK_AUTH_ISSUERS=[{issuer: "a, b", jwks_url: "https://h", audience: c, scopes: [platform]}]`,
		"SPENDHOOK_DATA_DIR=1", "SPENDHOOK_LOG_LEVEL=", "SPENDHOOK_PORT=tcp://1.2.3.4:80", "OTHER=x",
	}
	got, err := config.Load("testdata/good/proxy.yml", environ, map[string]string{"listen": "127.0.0.1:3"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"127.0.0.1:3 127.0.0.1:2 http://env [1s 2s] 0.1 true [10.0.0.0/8 fd00::/8] redis://h [A B] 1 a, b 1 info true",
	}
	line := fmt.Sprint(got.Listen, " ", got.AdminListen, " ", got.PublicURL, " ", got.Delivery.Schedule, " ",
		got.Delivery.Jitter, " ", got.Delivery.SignEd25519, " ", got.Egress.AllowCIDRs, " ", got.Redis.URL.Reveal(), " ",
		got.Events.Catalogue, " ", len(got.Auth.Issuers), " ", got.Auth.Issuers[0].Issuer, " ", got.DataDir, " ", got.Log.Level, " ", got.AdminPublic)
	if diff := cmp.Diff(want, []string{line}); diff != "" {
		t.Error(diff)
	}
}

func TestEverySettingCanBeSetFromTheEnvironment(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for key := range keys(t) {
		name := "SPENDHOOK_" + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
		if other, taken := seen[name]; taken {
			t.Errorf("%s is both %s and %s", name, key, other)
		}
		seen[name] = key
	}
	_, err := config.Load("", []string{"SPENDHOOK_DELIVERY_FAILING_AFTER=hunter2"}, map[string]string{"dev": "hunter2", "nonsense": "x"})
	wantProblems(t, err, []string{
		"delivery.failing_after: SPENDHOOK_DELIVERY_FAILING_AFTER: want a whole number",
		"dev: flag: want true or false",
		"nonsense: there is no such setting",
	})
}

func TestDefaultIsValidAndItsOwn(t *testing.T) {
	t.Parallel()
	one, other := config.Default(), config.Default()
	if err := one.Validate(); err != nil {
		t.Error(err)
	}
	one.Delivery.Schedule[0] = time.Hour
	if other.Delivery.Schedule[0] != 5*time.Second {
		t.Error("two defaults share a schedule")
	}
}

func TestSecretIsNeverPrinted(t *testing.T) {
	t.Parallel()
	c := config.Default()
	c.Redis.URL, c.Storage.URL = "hunter2", "hunter2"
	var out bytes.Buffer
	fmt.Fprintf(&out, "%v %+v %#v %s %q %x", c, c, c, c.Redis.URL, c.Redis.URL, c.Redis.URL)
	for _, encode := range []func(any) ([]byte, error){json.Marshal, yaml.Marshal} {
		text, err := encode(c)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(text)
	}
	for _, h := range []slog.Handler{slog.NewJSONHandler(&out, nil), slog.NewTextHandler(&out, nil)} {
		slog.New(h).Info("settings", "redis", c.Redis.URL, "all", c)
	}
	text := out.String()
	if strings.Contains(text, "hunter2") || strings.Contains(text, fmt.Sprintf("%x", "hunter2")) {
		t.Errorf("the secret is in:\n%s", text)
	}
	if secret.Text("").String() != "" {
		t.Error("an empty secret looks as if there were one")
	}
	if !strings.Contains(text, "[redacted]") || c.Redis.URL.Reveal() != "hunter2" {
		t.Errorf("no trace of it either in:\n%s", text)
	}
}

// The address of Redis may stand alone or beside the other settings of Redis.
func TestRedisIsAnAddressOrASection(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"redis: redis://h\n": "redis://h 0 0.85",
		"redis: {url: redis://h, memory: 5, high_water: 0.5}\n": "redis://h 5 0.5",
		"redis:\n  memory: 1000000000\n":                        "embedded 1000000000 0.85",
	} {
		file := filepath.Join(t.TempDir(), "c.yml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := config.Load(file, nil, nil)
		if got := fmt.Sprint(c.Redis.URL.Reveal(), " ", c.Redis.Memory, " ", c.Redis.HighWater); err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", text, got, err, want)
		}
		c, err = config.Load(file, []string{"SPENDHOOK_REDIS=redis://env", "SPENDHOOK_REDIS_MEMORY=7"}, nil)
		if err != nil || c.Redis.URL.Reveal() != "redis://env" || c.Redis.Memory != 7 {
			t.Errorf("%s, with an environment: %s %d, %v", text, c.Redis.URL.Reveal(), c.Redis.Memory, err)
		}
	}
}

func FuzzLoad(f *testing.F) {
	for _, dir := range []string{"good", "bad"} {
		names, err := filepath.Glob(filepath.Join("testdata", dir, "*.yml"))
		if err != nil {
			f.Fatal(err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(text, "5s")
		}
	}
	f.Fuzz(func(t *testing.T, text []byte, value string) {
		file := filepath.Join(t.TempDir(), "c.yml")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		environ := []string{"SPENDHOOK_DELIVERY_SCHEDULE=" + value, "SPENDHOOK_EVENTS_CATALOGUE=" + value, "SPENDHOOK_DELIVERY_JITTER=" + value}
		c, err := config.Load(file, environ, nil)
		if err == nil && c.Validate() != nil {
			t.Errorf("Load accepted what Validate refuses: %v", c.Validate())
		}
	})
}

// keys lists every setting, as section.name.
func keys(t *testing.T) map[string]bool {
	t.Helper()
	text, err := yaml.Marshal(config.Default())
	if err != nil {
		t.Fatal(err)
	}
	var tree map[string]any
	if err := yaml.Unmarshal(text, &tree); err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for name, value := range tree {
		section, ok := value.(map[string]any)
		if !ok {
			found[name] = true
		}
		for inner := range section {
			found[name+"."+inner] = true
		}
	}
	return found
}

func files(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join("testdata", dir, "*.yml"))
	if err != nil || len(names) == 0 {
		t.Fatalf("no fixtures in %s: %v", dir, err)
	}
	return names
}

func wanted(t *testing.T, file string) []string {
	t.Helper()
	var want []string
	for line := range strings.Lines(read(t, file)) {
		if text, ok := strings.CutPrefix(line, "# want: "); ok {
			want = append(want, strings.TrimSpace(text))
		}
	}
	return want
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// wantProblems matches each wanted line with the start of one problem.
func wantProblems(t *testing.T, err error, want []string) {
	t.Helper()
	var got *invalid.Error
	if !errors.As(err, &got) {
		t.Fatalf("error %v, want an *invalid.Error", err)
	}
	left := got.Fields
	for _, w := range want {
		i := indexOf(left, w)
		if i < 0 {
			t.Errorf("no problem starts with %q", w)
			continue
		}
		left = append(left[:i:i], left[i+1:]...)
	}
	for _, f := range left {
		t.Errorf("unexpected: %s: %s", f.Field, f.Message)
	}
}

func indexOf(fields []invalid.Field, start string) int {
	for i, f := range fields {
		if strings.HasPrefix(f.Field+": "+f.Message, start) {
			return i
		}
	}
	return -1
}

func TestCertificateRequired(t *testing.T) {
	t.Parallel()
	dev, err := config.LoadDaemon("", nil, map[string]string{"dev": "true"})
	if err != nil {
		t.Fatal(err)
	}
	for group, required := range dev.CertificateRequired() {
		if required {
			t.Errorf("dev in clear asks for a certificate for %s", group)
		}
	}
	proxied, err := config.LoadDaemon("testdata/good/proxy.yml", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{
		"subscribers": true, "reimbursements": true, "cards": true,
		"events": false, "deliveries": false, "locations": false, "billing": false, "audit": false, "clients": false, "console": false,
	}
	if diff := cmp.Diff(want, proxied.CertificateRequired()); diff != "" {
		t.Error(diff)
	}
}
