package events

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// cursor is how far a list has come: past the given place of a company, or
// past the whole company when the place is zero.
type cursor struct {
	company uuid.UUID
	place
}

// A cursor is written as a checksum, the company, the ms and the id. The
// checksum covers the filter too: it is there to tell a mistake, not to keep a
// secret. What a list may show is decided by its filter alone.
const (
	sumLen    = 8
	cursorLen = sumLen + 16 + 8 // and the id
)

func (c cursor) encode(f Filter) string {
	raw := make([]byte, sumLen, cursorLen+len(c.id))
	raw = append(raw, c.company[:]...)
	raw = binary.BigEndian.AppendUint64(raw, uint64(c.ms)) //nolint:gosec // carried bit by bit, both ways
	raw = append(raw, c.id...)
	binary.BigEndian.PutUint64(raw, f.checksum(raw[sumLen:]))
	return base64.RawURLEncoding.EncodeToString(raw)
}

// decodeCursor reads f.Cursor; "" is the start. A cursor is good when encode
// would write the same for this filter.
func decodeCursor(f Filter) (cursor, error) {
	if f.Cursor == "" {
		return cursor{}, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(f.Cursor)
	if err != nil || len(raw) < cursorLen {
		return cursor{}, ErrBadCursor
	}
	c := cursor{company: uuid.UUID(raw[sumLen : sumLen+16])}
	c.ms = int64(binary.BigEndian.Uint64(raw[sumLen+16:])) //nolint:gosec // as it was written
	c.id = string(raw[cursorLen:])
	if c.encode(f) != f.Cursor || f.Company != nil && *f.Company != c.company {
		return cursor{}, ErrBadCursor
	}
	return c, nil
}

func (f Filter) checksum(payload []byte) uint64 {
	h := fnv.New64a()
	_, _ = fmt.Fprintln(h, f.Company, f.Type, millisText(f.From), millisText(f.To)) // never fails
	_, _ = h.Write(payload)
	return h.Sum64()
}

func millisText(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return strconv.FormatInt(t.UnixMilli(), 10)
}
