package remote

import (
	"cmp"
	"context"
	"io"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/posener/complete"
)

// completeWithin is the time-out of a completion.
const completeWithin = 2 * time.Second

// Predictors maps the predictor tags of flags and arguments to completers. A completer lists
// ids from the daemon that the flags, the environment or the profile name. It lists none if the
// daemon does not answer within 2 s.
func Predictors(version string) map[string]complete.Predictor {
	idsOf := func(list func(*session) readPage, path string) complete.Predictor {
		return complete.PredictFunc(func(a complete.Args) []string { return valuesAt(version, a, path, list) })
	}
	return map[string]complete.Predictor{
		"subscriber":      idsOf(func(s *session) readPage { return pages(s, s.ListSubscribers) }, "uuid"),
		"event":           idsOf(func(s *session) readPage { return pages(s, s.ListEvents) }, "id"),
		"delivery":        idsOf(func(s *session) readPage { return pages(s, s.ListDeliveries) }, "id"),
		"job":             idsOf(func(s *session) readPage { return pages(s, s.ListJobs) }, "uuid"),
		"console-session": idsOf(func(s *session) readPage { return pages(s, s.ListConsoleSessions) }, "uuid"),
		"event-type":      idsOf(eventTypes, "name"),
		"profile": complete.PredictFunc(func(complete.Args) []string {
			list, _ := profiles() // after an error, nothing is completed
			return list
		}),
	}
}

// valuesAt returns the value at a path of each item of a list.
func valuesAt(version string, a complete.Args, path string, list func(*session) readPage) []string {
	ctx, cancel := context.WithTimeout(context.Background(), completeWithin)
	defer cancel()
	g := group{Connection: Connection{
		Profile: flagOf(a.All, "--profile", cmp.Or(os.Getenv("SPENDHOOK_PROFILE"), "default")),
		URL:     flagOf(a.All, "--url", os.Getenv("SPENDHOOK_URL")),
		CACert:  flagOf(a.All, "--cacert", os.Getenv("SPENDHOOK_CACERT")),
		Cert:    flagOf(a.All, "--cert", os.Getenv("SPENDHOOK_CLIENT_CERT")),
		Key:     flagOf(a.All, "--key", os.Getenv("SPENDHOOK_CLIENT_KEY")),
	}}
	g.TokenFile, g.RetryFor = flagOf(a.All, "--token-file", os.Getenv("SPENDHOOK_TOKEN_FILE")), -1
	if company, err := uuid.Parse(flagOf(a.All, "--company-uuid", os.Getenv("SPENDHOOK_COMPANY_UUID"))); err == nil {
		g.CompanyUUID = &company
	}
	s, err := g.ProvideSession(&Terminal{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard, Version: version})
	if err != nil {
		return nil
	}
	items, _, err := collect(ctx, listFlags{Size: 100}, list(s))
	if err != nil {
		return nil
	}
	found := make([]string, len(items))
	for i, item := range items {
		found[i] = item.at(path)
	}
	return found
}

// flagOf returns the value of a flag on an incomplete command line.
func flagOf(words []string, name, otherwise string) string {
	for i, word := range words {
		if value, ok := strings.CutPrefix(word, name+"="); ok {
			return value
		}
		if word == name && i+1 < len(words) {
			return words[i+1]
		}
	}
	return otherwise
}
