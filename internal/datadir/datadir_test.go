package datadir

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// Only the user of the daemon can read a file that Open returned, regardless of the umask and of the file's former mode.
func TestAnOpenedFileIsPrivate(t *testing.T) { // not parallel: it sets the umask
	defer syscall.Umask(syscall.Umask(0))
	dir := t.TempDir()
	made, found, link := filepath.Join(dir, "made"), filepath.Join(dir, "found"), filepath.Join(dir, "link")
	if err := os.WriteFile(found, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(found, link); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(found); err == nil {
		t.Error("a secret that others may read is read")
	}
	for _, path := range []string{made, found} {
		f, err := Open(path, os.O_CREATE|os.O_RDWR)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != fileMode {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	for _, path := range []string{link, dir} {
		if f, err := Open(path, os.O_RDONLY); err == nil {
			_ = f.Close()
			t.Errorf("%s is opened", path)
		}
	}
	for mode, good := range map[os.FileMode]bool{0o700: true, 0o701: false, 0o720: false} {
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		if err := Check(dir); (err == nil) != good {
			t.Errorf("a directory of mode %v: %v", mode, err)
		}
	}
}
