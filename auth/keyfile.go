package auth

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/go-json-experiment/json"

	"spendhook/internal/datadir"
	"spendhook/internal/seal"
)

const (
	// keysFile has the last known keys, sealed as in the database, for a start
	// while the database is away.
	keysFile = "token-keys.json"
	// oldKeyFile is the one key, in clear, of versions before the database had
	// the keys. It is imported.
	oldKeyFile = "token-key.pem"
)

func readKeysFile(dir string) ([]TokenKey, error) {
	text, err := datadir.Read(filepath.Join(dir, keysFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var rows []TokenKey
	if err == nil {
		err = json.Unmarshal(text, &rows)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", filepath.Join(dir, keysFile), err)
	}
	return rows, nil
}

// writeKeysFile writes the file whole under another name, down to the disk,
// and then gives it its own.
func writeKeysFile(dir string, rows []TokenKey) error {
	text, err := json.Marshal(rows)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "."+keysFile+"-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // there is none after the rename
	_, err = f.Write(text)
	if err := errors.Join(f.Chmod(0o600), err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), filepath.Join(dir, keysFile))
}

// readOldKey seals the key of an older version; nil when there is none.
func readOldKey(dir string, ring *seal.Keyring, opts KeysOptions) (*signingKey, error) {
	path := filepath.Join(dir, oldKeyFile)
	text, err := datadir.Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // documented
	}
	if err != nil {
		return nil, fmt.Errorf("token key %s: %w", path, err)
	}
	private, err := parsePEM(text)
	if err != nil {
		return nil, fmt.Errorf("token key %s: %w", path, err)
	}
	k, err := sealedKey(ring, private, opts.Now())
	if err != nil {
		return nil, fmt.Errorf("token key %s: %w", path, err)
	}
	k.row.TokensUntil = k.row.TokensUntil.Add(importedTTL) // nobody noted how long its tokens last
	return k, nil
}
