package keys

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/go-json-experiment/json"

	"spendhook/internal/datadir"
)

// keysFile has the last known keys, encrypted as in the database. A daemon reads it when it
// starts while the database is unreachable.
const keysFile = "token-keys.json"

func readKeysFile(dir string) ([]Key, error) {
	text, err := datadir.Read(filepath.Join(dir, keysFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var rows []Key
	if err == nil {
		err = json.Unmarshal(text, &rows)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", filepath.Join(dir, keysFile), err)
	}
	return rows, nil
}

func writeKeysFile(dir string, rows []Key) error {
	text, err := json.Marshal(rows)
	if err != nil {
		return err
	}
	return datadir.Replace(filepath.Join(dir, keysFile), text)
}
