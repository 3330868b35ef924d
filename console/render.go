package console

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
)

//go:embed templates/*.html
var templateFiles embed.FS

// loadPages parses each page with the layout and the shared templates.
func (s *server) loadPages() (map[string]*template.Template, error) {
	files, err := templateFiles.ReadDir("templates")
	if err != nil {
		return nil, fmt.Errorf("console templates: %w", err)
	}
	pages := map[string]*template.Template{}
	for _, f := range files {
		name := strings.TrimSuffix(f.Name(), ".html")
		if name == "layout" || name == "parts" {
			continue
		}
		t := template.New("layout.html").Funcs(s.funcs()).Option("missingkey=error")
		if pages[name], err = t.ParseFS(templateFiles, "templates/layout.html", "templates/parts.html", "templates/"+f.Name()); err != nil {
			return nil, fmt.Errorf("console templates: %w", err)
		}
	}
	return pages, nil
}

// view is the data of a template.
type view struct {
	*visit

	Title string
	Data  any
	About *uuid.UUID // the company of the page; nil: all companies
	Now   time.Time
}

// In reports whether the visitor has a session.
func (v view) In() bool { return v.secret != "" }

// Token returns the CSRF token for the forms of the page.
func (v view) Token() string { return tokenOf(v.secret) }

// Platform reports whether the session may choose the company.
func (v view) Platform() bool { return v.Company == nil && v.May(platform) }

// Part returns the first part of the page's path. The navigation marks it as current.
func (v view) Part() string {
	part, _, _ := strings.Cut(strings.TrimPrefix(v.r.URL.Path, "/console/"), "/")
	return part
}

// Path returns the path of the page.
func (v view) Path() string { return v.r.URL.Path }

// Count formats a number in the query of the page.
func (v view) Count(name string) string { return number(v.number(name)) }

// Without returns the address of the page without one parameter of the query.
func (v view) Without(name string) string {
	query := v.r.URL.Query()
	query.Del(name)
	return v.r.URL.Path + "?" + query.Encode()
}

// Stamp formats a time for a form.
func (v view) Stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// Rows returns the data of the table of deliveries; with tick, rows can be selected.
func (v view) Rows(rows []deliveryRow, tick bool) deliveryTable { return deliveryTable{v, rows, tick} }

type deliveryTable struct {
	View view
	Rows []deliveryRow
	Tick bool
}

// Left returns the remaining time of the session.
func (v view) Left() string { return shortDuration(v.Session.ExpiresAt.Sub(v.Now).Round(time.Minute)) }

// show answers with a page.
func (v *visit) show(name, title string, data any) { v.render(http.StatusOK, name, title, data) }

func (v *visit) render(status int, name, title string, data any) {
	about, _ := v.company() // nil if the company in the address is invalid
	var page bytes.Buffer
	err := v.server.pages[name].Execute(&page, view{visit: v, Title: title, Data: data, About: about, Now: v.server.opts.Now()})
	if err != nil {
		v.server.opts.Logger.LogAttrs(v.r.Context(), slog.LevelError, "console page not rendered", slog.String("file.path", name), slog.Any("exception.message", err))
		http.Error(v.w, "The page could not be rendered. The log contains the cause.", http.StatusInternalServerError)
		return
	}
	v.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	v.w.WriteHeader(status)
	_ = http.NewResponseController(v.w).SetWriteDeadline(v.server.opts.Now().Add(writeTimeout))
	_, _ = page.WriteTo(v.w) // the browser may have disconnected
}
