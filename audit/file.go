package audit

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/go-json-experiment/json"

	"spendhook/internal/datadir"
)

const (
	// maxFile bounds the file of the entries that wait for Redis, in bytes: some 150,000 entries.
	maxFile = 64 << 20
	// moveBatch and moveBytes limit the entries that are moved from the file to Redis at once.
	moveBatch = 500
	moveBytes = 1 << 20
)

var errFileFull = errors.New("the file is full")

// addToFile appends an encoded entry as a line, and syncs the file. Entries with an unknown outcome may
// fill half of the file, so that space is left for successful changes: while Redis is down, most outcomes
// are unknown.
func (l *Log) addToFile(text []byte, outcome Outcome) error {
	most := int64(maxFile)
	if outcome == Unknown {
		most /= 2
	}
	return l.withFile(func(f *os.File) error {
		size, err := f.Seek(0, io.SeekEnd)
		if err != nil {
			return err
		}
		if size+int64(len(text)) > most {
			return errFileFull
		}
		_, err = f.Write(append([]byte{'\n'}, text...)) // first ends the incomplete line of a process that crashed
		return errors.Join(err, f.Sync())
	})
}

// emptyFile calls take with all lines of the file, in batches, and then truncates the file.
// If take fails, all of them stay in the file. It logs and skips each line that is not an entry.
func (l *Log) emptyFile(take func([][]byte) error) error {
	if info, err := os.Stat(l.file); err != nil || info.Size() == 0 {
		return nil //nolint:nilerr // nothing waits
	}
	return l.withFile(func(f *os.File) error {
		lines := bufio.NewScanner(f)
		lines.Buffer(nil, 2*maxFile)
		var batch [][]byte
		size := 0
		for lines.Scan() {
			var e Entry
			if err := json.Unmarshal(lines.Bytes(), &e); err == nil {
				batch = append(batch, bytes.Clone(lines.Bytes()))
				size += len(lines.Bytes())
			} else if lines.Text() != "" {
				l.opts.Logger.Error("a line of the audit file is not an audit entry", "file.path", l.file, "line", lines.Text())
			}
			if len(batch) == moveBatch || size > moveBytes {
				if err := take(batch); err != nil {
					return err
				}
				batch, size = batch[:0], 0
			}
		}
		if err := lines.Err(); err != nil {
			return err
		}
		if len(batch) > 0 {
			if err := take(batch); err != nil {
				return err
			}
		}
		return errors.Join(f.Truncate(0), f.Sync())
	})
}

// withFile opens and locks the file, which other processes use too.
func (l *Log) withFile(use func(f *os.File) error) error {
	f, err := datadir.Lock(context.Background(), l.file)
	if err != nil {
		return fmt.Errorf("audit file: %w", err)
	}
	defer f.Close() // Close unlocks the file
	if err := use(f); err != nil {
		return fmt.Errorf("%s: %w", l.file, err)
	}
	return nil
}
