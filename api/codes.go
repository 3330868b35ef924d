package api

import (
	"bytes"
	"fmt"
	"html/template"
	"net/http"
	"strings"
)

// errorCode is what the document says of a code of an answer, in x-error-codes.
type errorCode struct {
	Status        int `json:"status"`     // 0: the code is only in the errors of a 400
	RetryAfter    int `json:"retryAfter"` // seconds after which the same request may succeed; 0: no Retry-After
	Cause, Remedy string
}

// codes are the codes of the document.
func codes() map[string]errorCode {
	doc, _ := parse() // New returns its error
	return doc.codes
}

// typeOf is the type of a problem: the URI of the explanation of its code.
func (s *server) typeOf(code string) string {
	return s.opts.PublicURL + "/docs/errors#" + strings.ToLower(code)
}

func shownStatus(status int) string {
	if status == 0 {
		return "In `errors` of a 400"
	}
	return fmt.Sprintf("%d %s", status, http.StatusText(status))
}

var errorsPage = template.Must(template.New("").Funcs(template.FuncMap{"lower": strings.ToLower, "status": shownStatus}).Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Error codes</title><h1>Error codes</h1>
{{range $code, $c := .}}<h2 id="{{lower $code}}">{{$code}}</h2><p>{{status $c.Status}}. {{$c.Cause}}</p><p><b>What to do:</b> {{$c.Remedy}}</p>
{{end}}`))

// errorsHTML is the page at /docs/errors.
func errorsHTML() ([]byte, error) {
	var b bytes.Buffer
	err := errorsPage.Execute(&b, codes())
	return b.Bytes(), err
}
