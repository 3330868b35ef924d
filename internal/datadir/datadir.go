// Package datadir opens, writes and locks the files of the data directory. It checks that they belong
// to this user and that no other user can read or write them.
package datadir

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

const (
	dirMode  = 0o700
	fileMode = 0o600
)

// Make creates the directory if it does not exist, and checks it.
func Make(dir string) error {
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	return Check(dir)
}

// Check refuses a directory that does not exist, belongs to another user, or is accessible to
// other users.
func Check(dir string) error {
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("data directory %s does not exist; 'spendhook serve' creates it, --data-dir and SPENDHOOK_DATA_DIR name another one", dir)
	case err != nil:
		return fmt.Errorf("data directory: %w", err)
	case !info.IsDir():
		return fmt.Errorf("data directory %s: is not a directory", dir)
	case !isOwn(info):
		return fmt.Errorf("data directory %s: belongs to another user; make the daemon's user its owner, or name a directory in it, which the daemon creates", dir)
	case info.Mode().Perm()&otherUsers != 0:
		return fmt.Errorf("data directory %s: mode %v lets others use it; set 0700", dir, info.Mode().Perm())
	}
	return nil
}

// Open is os.OpenFile for a file of the data directory. It sets mode 0600, whatever the umask.
// It follows no link, and refuses anything but a regular file of this user.
func Open(path string, flag int) (*os.File, error) {
	f, mode, err := open(path, flag)
	if err != nil || mode == fileMode {
		return f, err
	}
	if err := f.Chmod(fileMode); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Read is os.ReadFile for a file of the data directory that contains a secret. It follows no
// link, and refuses anything but a regular file of this user that other users cannot access:
// otherwise the secret may be known.
func Read(path string) ([]byte, error) {
	f, mode, err := open(path, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if mode&otherUsers != 0 {
		return nil, fmt.Errorf("%s: mode %v lets others use it; set 0600", path, mode)
	}
	return io.ReadAll(f)
}

// Replace writes a file that only this user can read. It replaces an existing file.
func Replace(path string, text []byte) error { return write(path, text, os.Rename) }

// Create writes a file that only this user can read, unless the file exists: of two concurrent
// processes one succeeds. It also syncs the directory, because the file may be a key, and a lost key
// means lost secrets.
func Create(path string, text []byte) error {
	if err := write(path, text, os.Link); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// write writes and syncs a temporary file, and then calls place to give the file its name. So no
// process reads a partial file.
func write(path string, text []byte, place func(from, to string) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // after a rename it does not exist
	_, err = f.Write(text)
	if err := errors.Join(f.Chmod(fileMode), err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return place(f.Name(), path)
}

func open(path string, flag int) (f *os.File, mode fs.FileMode, err error) {
	f, err = os.OpenFile(path, flag|safeFlags, fileMode)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%s: is not a regular file", path)
	case !isOwn(info):
		err = fmt.Errorf("%s: belongs to another user", path)
	default:
		return f, info.Mode().Perm(), nil
	}
	f.Close()
	return nil, 0, err
}
