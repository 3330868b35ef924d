// Command exports prints the exported names of the module that neither another package nor a test of
// another package uses, and the packages that export more than limit names. Types, functions,
// variables and constants count, but not the constants of an enumeration, and not errors. The
// command fails if it prints any. Libraries of clients/go may have names that only others use.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// limit is how many names a package may export.
const limit = 15

func main() {
	if err := run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "exports:", err)
		os.Exit(1)
	}
}

// listed is a package as go list describes it.
type listed struct {
	ImportPath, Name, Dir, Export string
	GoFiles                       []string
	TestGoFiles, XTestGoFiles     []string
	Standard                      bool
	Module                        *struct{ Main bool }
}

func (p listed) ours() bool { return p.Module != nil && p.Module.Main }

// checked reports whether the exports of the package are checked. Those of commands and test helpers
// are not.
func (p listed) checked() bool {
	return p.ours() && p.Name != "main" && !strings.HasSuffix(p.Name, "test")
}

// forOthers reports whether the package is a library for other programs than ours.
func (p listed) forOthers() bool { return strings.Contains(p.ImportPath, "/clients/go/") }

// module has all packages of the build. They are imported from export data, so that a type is the
// same object in all of them.
type module struct {
	packages []listed
	files    *token.FileSet
	importer types.Importer
	used     map[string]bool      // keys of objects
	tested   map[string]bool      // "path name" of names that tests of other packages select
	group    map[string]token.Pos // declarations of several constants, by the key of each constant
	written  map[string]bool      // files that are not generated
	wanted   []*types.Interface   // interfaces that types may have to satisfy
}

func run(out io.Writer) error {
	m, err := load()
	if err != nil {
		return err
	}
	for _, p := range m.packages {
		if err := m.read(p); err != nil {
			return fmt.Errorf("%s: %w", p.ImportPath, err)
		}
	}
	if err := m.markMethods(); err != nil {
		return err
	}
	unused, large := 0, 0
	for _, p := range m.packages {
		if !p.checked() {
			continue
		}
		names, err := m.exported(p.ImportPath)
		if err != nil {
			return err
		}
		if count := m.count(names); count > limit {
			large++
			fmt.Fprintf(out, "%s exports %d names, more than %d\n", p.ImportPath, count, limit)
		}
		if p.forOthers() {
			continue
		}
		together := map[token.Pos]bool{}
		for _, o := range names {
			if at := m.group[key(o)]; at.IsValid() && m.used[key(o)] {
				together[at] = true
			}
		}
		for _, o := range names {
			if !m.used[key(o)] && !together[m.group[key(o)]] && !m.ofUsedType(o) && !m.tested[p.ImportPath+" "+o.Name()] {
				unused++
				fmt.Fprintln(out, key(o))
			}
		}
	}
	if unused+large > 0 {
		return fmt.Errorf("%d exported names that no other package uses, %d packages that export too many", unused, large)
	}
	return nil
}

// count returns how many of the names count towards the limit: no methods, and no exempt names.
func (m *module) count(names []types.Object) (count int) {
	for _, o := range names {
		f, ok := o.(*types.Func)
		if isMethod := ok && f.Signature().Recv() != nil; !isMethod && !m.exempt(o) {
			count++
		}
	}
	return count
}

func load() (*module, error) {
	cmd := exec.Command("go", "list", "-deps", "-export", "-json=ImportPath,Name,Dir,Export,GoFiles,TestGoFiles,XTestGoFiles,Standard,Module", "./...") //nolint:noctx // ends with this program
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	m := &module{files: token.NewFileSet(), used: map[string]bool{}, tested: map[string]bool{}, group: map[string]token.Pos{}, written: map[string]bool{}}
	exports := map[string]string{}
	for d := json.NewDecoder(bytes.NewReader(text)); ; {
		var p listed
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		m.packages = append(m.packages, p)
		exports[p.ImportPath] = p.Export
	}
	m.importer = importer.ForCompiler(m.files, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	return m, nil
}

// read records the names that one of our packages uses of other packages, and the interfaces of the
// package.
func (m *module) read(p listed) error {
	if !p.ours() {
		return m.readLibrary(p.ImportPath)
	}
	var files []*ast.File
	for _, name := range p.GoFiles {
		path := filepath.Join(p.Dir, name)
		f, err := parser.ParseFile(m.files, path, nil, parser.SkipObjectResolution|parser.ParseComments)
		if err != nil {
			return err
		}
		m.written[p.ImportPath+"/"+name] = !ast.IsGenerated(f)
		files = append(files, f)
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}, Types: map[ast.Expr]types.TypeAndValue{}}
	if _, err := (&types.Config{Importer: m.importer}).Check(p.ImportPath, m.files, files, info); err != nil {
		return err
	}
	pkg, err := m.importer.Import(p.ImportPath)
	if err != nil {
		return err
	}
	for _, name := range pkg.Scope().Names() { // names of other packages may be aliased here
		m.want(pkg.Scope().Lookup(name).Type())
	}
	for _, o := range info.Uses {
		if o.Pkg() != nil && o.Pkg().Path() != p.ImportPath {
			m.used[key(o)] = true
		}
	}
	for _, t := range info.Types {
		m.want(t.Type)
		m.hold(p.ImportPath, t.Type)
	}
	for _, f := range files {
		m.enumerations(p.ImportPath, f)
	}
	for _, name := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
		f, err := parser.ParseFile(m.files, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		m.test(p.ImportPath, f)
	}
	return nil
}

// readLibrary records the interfaces of a package of others.
func (m *module) readLibrary(path string) error {
	if path == "unsafe" || strings.Contains("/"+path, "/internal/") || strings.HasPrefix(path, "vendor/") {
		return nil
	}
	pkg, err := m.importer.Import(path)
	if err != nil {
		return err
	}
	for _, name := range pkg.Scope().Names() {
		m.want(pkg.Scope().Lookup(name).Type())
	}
	return nil
}

// test records the names that a test file selects from other packages. Tests are not type-checked,
// so it records each name for every imported package.
func (m *module) test(of string, f *ast.File) {
	var imported []string
	for _, i := range f.Imports {
		if path := strings.Trim(i.Path.Value, `"`); path != of {
			imported = append(imported, path)
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			for _, path := range imported {
				m.tested[path+" "+s.Sel.Name] = true
			}
		}
		return true
	})
}

// hold marks a type as used if another package has a value of the type.
func (m *module) hold(by string, t types.Type) {
	switch t := t.(type) {
	case *types.Named:
		if o := t.Obj(); o.Pkg() != nil && o.Pkg().Path() != by {
			m.used[key(o)] = true
		}
	case *types.Alias:
		m.hold(by, t.Rhs())
	case interface{ Elem() types.Type }: // pointers, slices, arrays, maps and channels
		m.hold(by, t.Elem())
	}
}

// enumerations records which constants are declared together. If one of them is used, all count as
// used.
func (m *module) enumerations(path string, f *ast.File) {
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST || len(g.Specs) < 2 {
			continue
		}
		for _, spec := range g.Specs {
			for _, name := range spec.(*ast.ValueSpec).Names {
				m.group[path+"."+name.Name] = g.Pos()
			}
		}
	}
}

// want records a type that is an interface with methods.
func (m *module) want(t types.Type) {
	if t == nil {
		return
	}
	if i, ok := t.Underlying().(*types.Interface); ok && i.NumMethods() > 0 && !slices.Contains(m.wanted, i) {
		m.wanted = append(m.wanted, i)
	}
}

// markMethods marks the methods that our types need to satisfy an interface as used.
func (m *module) markMethods() error {
	for _, p := range m.packages {
		if !p.checked() {
			continue
		}
		pkg, err := m.importer.Import(p.ImportPath)
		if err != nil {
			return err
		}
		for _, name := range pkg.Scope().Names() {
			t, ok := pkg.Scope().Lookup(name).(*types.TypeName)
			if !ok || types.IsInterface(t.Type()) {
				continue
			}
			methods := types.NewMethodSet(types.NewPointer(t.Type()))
			for _, i := range m.wanted {
				if !types.Implements(types.NewPointer(t.Type()), i) {
					continue
				}
				for f := range i.Methods() {
					if s := methods.Lookup(f.Pkg(), f.Name()); s != nil {
						m.used[key(s.Obj())] = true
					}
				}
			}
		}
	}
	return nil
}

// exported returns the exported names of a package, and the methods of its types, except for those
// in generated files.
func (m *module) exported(path string) ([]types.Object, error) {
	pkg, err := m.importer.Import(path)
	if err != nil {
		return nil, err
	}
	var all []types.Object
	for _, name := range pkg.Scope().Names() {
		o := pkg.Scope().Lookup(name)
		if !o.Exported() || !m.written[path+"/"+filepath.Base(m.files.Position(o.Pos()).Filename)] {
			continue
		}
		all = append(all, o)
		named, ok := o.Type().(*types.Named)
		if _, isType := o.(*types.TypeName); !isType || !ok || types.IsInterface(named) {
			continue
		}
		for f := range named.Methods() {
			if f.Exported() && f.Name() != "Unwrap" { // package errors calls Unwrap
				all = append(all, f)
			}
		}
	}
	return all, nil
}

// ofUsedType reports whether o is a constant whose type another package uses.
func (m *module) ofUsedType(o types.Object) bool {
	c, ok := o.(*types.Const)
	if !ok {
		return false
	}
	named, ok := c.Type().(*types.Named)
	return ok && m.used[key(named.Obj())]
}

// exempt reports whether o is a constant of an enumeration, or an error.
func (m *module) exempt(o types.Object) bool {
	if m.group[key(o)].IsValid() {
		return true
	}
	v, ok := o.(*types.Var)
	return ok && types.Identical(v.Type(), types.Universe.Lookup("error").Type())
}

// key returns a name of an object that is the same in every package.
func key(o types.Object) string {
	if f, ok := o.(*types.Func); ok {
		f = f.Origin()
		if recv := f.Signature().Recv(); recv != nil {
			t := recv.Type()
			if p, ok := t.(*types.Pointer); ok {
				t = p.Elem()
			}
			if named, ok := t.(*types.Named); ok {
				return f.Pkg().Path() + "." + named.Obj().Name() + "." + f.Name()
			}
		}
	}
	return o.Pkg().Path() + "." + o.Name()
}
