package seal_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"spendhook/internal/seal"
)

func TestOpenFileMakesAKeyOnceForAll(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "encryption.key")
	keys := make([]seal.Key, 8)
	var wg sync.WaitGroup
	for i := range keys {
		wg.Go(func() {
			var err error
			if keys[i], err = seal.OpenFile(path); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, k := range keys {
		if k != keys[0] || k.ID == "" {
			t.Errorf("%v and %v", k, keys[0])
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v, want 0600", info.Mode(), err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "*")); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestReadFileRefusesWhatEveryoneReads(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "key")
	text := seal.NewKeyText()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := seal.ReadFile(path); err != nil {
		t.Error(err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := seal.ReadFile(path); err == nil || !strings.Contains(err.Error(), "0600") {
		t.Errorf("%v, want a refusal", err)
	}
}

func TestADamagedKeyFileIsNeitherReadNorReplaced(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte("half-a-key"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := seal.OpenFile(path); err == nil || strings.Contains(err.Error(), "half-a-key") || !strings.Contains(err.Error(), path) {
		t.Errorf("%v", err)
	}
	if text, _ := os.ReadFile(path); string(text) != "half-a-key" {
		t.Errorf("the file was replaced by %q", text)
	}
}
