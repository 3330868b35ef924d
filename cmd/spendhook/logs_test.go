package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// logMethods are those of slog.Logger, with the place of their message.
var logMethods = map[string]int{
	"Debug": 0, "Info": 0, "Warn": 0, "Error": 0, "DebugContext": 1, "InfoContext": 1, "WarnContext": 1, "ErrorContext": 1,
	"Log": 2, "LogAttrs": 2, "With": -1,
}

// logFields finds the keys of all log lines in a file.
func logFields(file *ast.File, found map[string]bool) {
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if from, ok := method.X.(*ast.Ident); ok && from.Name == "slog" && len(call.Args) == 2 { // slog.String(key, value)
			addLiteral(call.Args[0], found)
			return true
		}
		message, ok := logMethods[method.Sel.Name]
		if !ok || !isLogger(method.X) {
			return true
		}
		for i := message + 1; i < len(call.Args); i += 2 {
			addLiteral(call.Args[i], found)
		}
		return true
	})
}

func isLogger(x ast.Expr) bool {
	name := ""
	switch x := x.(type) {
	case *ast.Ident:
		name = x.Name
	case *ast.SelectorExpr:
		name = x.Sel.Name
	}
	return slices.Contains([]string{"log", "Logger", "logger"}, name)
}

func addLiteral(x ast.Expr, found map[string]bool) {
	if lit, ok := x.(*ast.BasicLit); ok && lit.Kind == token.STRING {
		if text, err := strconv.Unquote(lit.Value); err == nil {
			found[text] = true
		}
	}
}

// Every field of a log line is in docs/logs.md, and no other.
func TestTheFieldsOfTheLogAreDocumented(t *testing.T) {
	t.Parallel()
	const root = "../.."
	found := map[string]bool{"time": true, "level": true, "msg": true}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		inside, _ := filepath.Rel(root, path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && (inside == "bench" || inside == "bin" || strings.HasPrefix(inside, ".git") || inside == "internal/tools"):
			return fs.SkipDir
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err == nil {
			logFields(file, found)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs/logs.md"))
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(string(text), -1) {
		documented[row[1]] = true
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if !documented[name] {
			t.Errorf("docs/logs.md does not list %s", name)
		}
		if !regexp.MustCompile(`^[a-z][a-z0-9]*([._][a-z0-9]+)*$`).MatchString(name) {
			t.Errorf("%s is no name for a field", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(documented)) {
		if !found[name] {
			t.Errorf("docs/logs.md lists %s, which no line has", name)
		}
	}
}
