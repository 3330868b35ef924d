package events

import (
	"errors"
	"strings"

	"github.com/google/uuid"
)

// Ref names one event. Ids are unique within a company only, so that no company can block or
// probe ids of another.
type Ref struct {
	Company uuid.UUID
	ID      string
}

var errRef = errors.New("event reference is not <company>/<id>")

// String is "<company>/<id>".
func (r Ref) String() string { return r.Company.String() + "/" + r.ID }

// ParseRef reads what String wrote, and nothing else.
func ParseRef(text string) (Ref, error) {
	company, id, _ := strings.Cut(text, "/")
	parsed, err := uuid.Parse(company)
	if err != nil || parsed.String() != company || !validID(id) {
		return Ref{}, errRef
	}
	return Ref{Company: parsed, ID: id}, nil
}

// validID reports whether id is 1..128 of [A-Za-z0-9_-].
func validID(id string) bool {
	return len(id) >= 1 && len(id) <= 128 && !strings.ContainsFunc(id, notIDRune)
}

func notIDRune(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-'
}
