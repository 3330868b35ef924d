package audit

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/go-json-experiment/json"

	"spendhook/internal/datadir"
	"spendhook/internal/filelock"
)

// maxSpool bounds the file, in bytes: some 150,000 entries.
const maxSpool = 64 << 20

var errSpoolFull = errors.New("the file is full")

// spool is a file of entries, one JSON object a line, that wait for Redis. Other
// processes may use the same file.
type spool struct{ path string }

// add appends entries and returns when they are on the disk. The file may then
// have most bytes.
func (s spool) add(entries []Entry, most int64) error {
	var text bytes.Buffer
	for _, e := range entries {
		line, err := encode(e)
		if err != nil {
			return err
		}
		text.Write(append(line, '\n'))
	}
	return s.locked(func(f *os.File) error {
		size, err := f.Seek(0, io.SeekEnd)
		if err != nil {
			return err
		}
		if size+int64(text.Len()) > most {
			return errSpoolFull
		}
		_, err = f.Write(append(endOfTornLine(f, size), text.Bytes()...))
		return errors.Join(err, f.Sync())
	})
}

// endOfTornLine returns a newline if the file ends in a torn line, which a process left that
// crashed while writing.
func endOfTornLine(f *os.File, size int64) []byte {
	last := []byte{'\n'}
	if size > 0 {
		_, _ = f.ReadAt(last, size-1)
	}
	if last[0] == '\n' {
		return nil
	}
	return []byte{'\n'}
}

// empty calls take with all entries, in batches, and then truncates the file. If take fails,
// all entries stay in the file. empty calls bad for each line that is not an entry.
func (s spool) empty(take func([]Entry) error, bad func(line []byte)) error {
	if info, err := os.Stat(s.path); err != nil || info.Size() == 0 {
		return nil //nolint:nilerr // nothing waits
	}
	return s.locked(func(f *os.File) error {
		if err := readLines(f, take, bad); err != nil {
			return err
		}
		return errors.Join(f.Truncate(0), f.Sync())
	})
}

func readLines(f io.Reader, take func([]Entry) error, bad func(line []byte)) error {
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	var part []Entry
	for lines.Scan() {
		var e Entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			if len(lines.Bytes()) > 0 {
				bad(lines.Bytes())
			}
			continue
		}
		if part = append(part, e); len(part) == maxBatch {
			if err := take(part); err != nil {
				return err
			}
			part = part[:0]
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if len(part) == 0 {
		return nil
	}
	return take(part)
}

// locked opens the file and locks it against other processes.
func (s spool) locked(use func(f *os.File) error) error {
	f, err := datadir.Open(s.path, os.O_CREATE|os.O_RDWR)
	if err != nil {
		return fmt.Errorf("audit file: %w", err)
	}
	defer f.Close() // which frees the lock
	if err := filelock.Exclusive(f); err != nil {
		return fmt.Errorf("lock %s: %w", s.path, err)
	}
	if err := use(f); err != nil {
		return fmt.Errorf("%s: %w", s.path, err)
	}
	return nil
}
