package column

import (
	"database/sql/driver"
	"fmt"
	"strings"
)

// Words are texts without spaces, which one column holds with spaces between them.
type Words []string

// Value returns the text that the database stores.
func (w Words) Value() (driver.Value, error) { return strings.Join(w, " "), nil }

// Scan reads a value of the database.
func (w *Words) Scan(src any) error {
	switch src := src.(type) {
	case string:
		*w = strings.Fields(src)
	case []byte:
		*w = strings.Fields(string(src))
	default:
		return fmt.Errorf("a list of words is stored as %T", src)
	}
	return nil
}
