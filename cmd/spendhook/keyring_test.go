package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"spendhook/config"
	"spendhook/internal/seal"
	"spendhook/internal/secret"
)

func TestTheKeyringHasTheKeysOfTheSettings(t *testing.T) {
	t.Parallel()
	text, old, older := seal.NewKeyText(), seal.NewKeyText(), seal.NewKeyText()
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte(older), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := config.Config{DataDir: filepath.Join(t.TempDir(), "none"), Encryption: config.Encryption{
		Key: secret.Text(text), OldKeys: []secret.Text{secret.Text(old)}, OldKeyFiles: []string{file},
	}}
	keys, err := openKeyring(&cfg, seal.OpenFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{text, old, older} {
		key, err := seal.ParseKey(text)
		if err != nil {
			t.Fatal(err)
		}
		single, err := seal.New(key)
		if err != nil {
			t.Fatal(err)
		}
		sealed, err := single.Seal([]byte("secret"), "place")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := keys.Open(sealed, "place"); err != nil || string(got) != "secret" {
			t.Errorf("opened %q, %v", got, err)
		}
	}
	if _, err := os.Stat(cfg.DataDir); !os.IsNotExist(err) {
		t.Errorf("a key was made beside the one that was given: %v", err)
	}
}

func TestAKeyIsMadeInTheDataDirectory(t *testing.T) {
	t.Parallel()
	cfg := config.Config{DataDir: emptyDir(t)}
	if _, err := openKeyring(&cfg, seal.ReadOwnFile); err == nil || !strings.Contains(err.Error(), cfg.DataDir) {
		t.Errorf("a command finds a key: %v", err)
	}
	one, err := openKeyring(&cfg, seal.OpenFile)
	if err != nil {
		t.Fatal(err)
	}
	two, err := openKeyring(&cfg, seal.ReadOwnFile)
	if err != nil || one.CurrentID() != two.CurrentID() {
		t.Errorf("another key the second time: %v", err)
	}
	cfg.Encryption.KeyFile = filepath.Join(cfg.DataDir, "missing")
	if _, err := openKeyring(&cfg, seal.OpenFile); !os.IsNotExist(err) && (err == nil || !strings.Contains(err.Error(), "missing")) {
		t.Errorf("a key file that is not there: %v", err)
	}
}

func TestAWarningIsLoggedForALocalKeyOfRemoteData(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		redis, storage, key string
		want                bool
	}{
		"embedded":           {redis: "embedded"},
		"Redis elsewhere":    {redis: "rediss://redis.internal:6379", want: true},
		"database elsewhere": {redis: "embedded", storage: "postgres://u:p@db/spend", want: true},
		"but a key was set":  {redis: "redis://redis:6379", key: seal.NewKeyText()},
	} {
		var out bytes.Buffer
		cfg := config.Config{
			DataDir: "d", Redis: config.Redis{URL: secret.Text(test.redis)}, Storage: config.Storage{URL: secret.Text(test.storage)},
			Encryption: config.Encryption{Key: secret.Text(test.key)},
		}
		warnOfLocalKey(&cfg, slog.New(slog.NewTextHandler(&out, nil)))
		if got := strings.Contains(out.String(), "encryption.key"); got != test.want {
			t.Errorf("%s: warned %v, want %v: %s", name, got, test.want, &out)
		}
	}
}
