package login

import (
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
)

// Role gives the members of a group rights.
type Role struct {
	Group string
	Name  string // of a role: a key of scopesOf
	// Company is the company of a role whose name begins with "company-". uuid.Nil means those of the company claim.
	Company uuid.UUID
}

// maxTargets bounds the companies among which a user chooses.
const maxTargets = 20

// scopesOf has the scopes of each role. Those of the roles for all companies have "platform".
var scopesOf = map[string][]string{
	"operator": {
		"subscribers:read", "subscribers:write", "events:read", "events:write", "deliveries:read", "deliveries:write", "cards:read", "operator", "platform",
	},
	"support":         {"subscribers:read", "events:read", "deliveries:read", "deliveries:write", "platform"},
	"company-admin":   {"subscribers:read", "subscribers:write", "events:read", "events:write", "deliveries:read", "deliveries:write", "cards:read"},
	"company-support": {"subscribers:read", "events:read", "deliveries:read", "deliveries:write"},
	"company-reader":  {"subscribers:read", "events:read", "deliveries:read"},
}

// target is what a session may be for: one company, or nil for all.
type target struct {
	company *uuid.UUID
	scopes  []string // sorted
}

// targetsOf returns the targets of a user with these groups: for all companies first, then by company. The scopes of
// several roles for the same target are united. An operator has all companies already.
func targetsOf(roles []Role, groups []string, companies []uuid.UUID) []target {
	scopes := map[uuid.UUID][]string{} // uuid.Nil: all companies
	for _, r := range roles {
		if !slices.Contains(groups, r.Group) {
			continue
		}
		of := []uuid.UUID{r.Company}
		if strings.HasPrefix(r.Name, "company-") && r.Company == uuid.Nil {
			of = companies
		}
		for _, company := range of {
			scopes[company] = append(scopes[company], scopesOf[r.Name]...)
		}
	}
	if all := scopes[uuid.Nil]; slices.Contains(all, "operator") {
		scopes = map[uuid.UUID][]string{uuid.Nil: all}
	}
	var targets []target
	for _, company := range slices.SortedFunc(maps.Keys(scopes), func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) }) {
		t := target{scopes: slices.Compact(slices.Sorted(slices.Values(scopes[company])))}
		if company != uuid.Nil {
			t.company = &company
		}
		targets = append(targets, t)
	}
	return targets
}

// texts returns the texts of a claim: a text, or a list.
func texts(claim any) (found []string) {
	switch claim := claim.(type) {
	case string:
		return []string{claim}
	case []any:
		for _, item := range claim {
			if text, ok := item.(string); ok {
				found = append(found, text)
			}
		}
	}
	return found
}

// uuids returns the texts of a claim that are UUIDs, without the zero UUID, which means no company.
func uuids(claim any) (found []uuid.UUID) {
	for _, text := range texts(claim) {
		if id, err := uuid.Parse(text); err == nil && id != uuid.Nil {
			found = append(found, id)
		}
	}
	return found
}

// printable returns the printable ASCII of a text of others, of at most n bytes.
func printable(text string, n int) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text[:min(len(text), n)])
	return text
}
