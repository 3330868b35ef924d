package seal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"spendhook/internal/datadir"
)

// ReadFile reads a key from a file, or a link to one, which must not be readable
// by everyone.
func ReadFile(path string) (Key, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Key{}, err
	}
	if info.Mode().Perm()&0o007 != 0 {
		return Key{}, fmt.Errorf("%s: mode %v lets everyone use it; set 0600", path, info.Mode().Perm())
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return Key{}, err
	}
	return parseFile(path, text)
}

func parseFile(path string, text []byte) (Key, error) {
	key, err := ParseKey(string(text))
	if err != nil {
		return Key{}, fmt.Errorf("%s: %w", path, err)
	}
	return key, nil
}

// ReadOwnFile reads a key from a file of the data directory (datadir.Read).
func ReadOwnFile(path string) (Key, error) {
	text, err := datadir.Read(path)
	if err != nil {
		return Key{}, err
	}
	return parseFile(path, text)
}

// OpenFile is ReadOwnFile, but creates the file with a new key when it does not exist.
// Concurrent processes get the same key.
func OpenFile(path string) (Key, error) {
	key, err := ReadOwnFile(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	if err := datadir.Create(path, []byte(NewKeyText()+"\n")); err != nil {
		return Key{}, err
	}
	return ReadOwnFile(path)
}
