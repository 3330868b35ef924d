// Command exports prints the exported names of the module that no other package and no test of one
// uses, and the packages that export more than most names: types, functions, variables and
// constants, but neither the constants of an enumeration nor errors that callers check for. It
// fails if there are any.
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

// most is how many names a package may export.
const most = 15

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

// counted reports whether to count the exports of the package: not of commands and test
// helpers.
func (p listed) counted() bool {
	return p.ours() && p.Name != "main" && !strings.HasSuffix(p.Name, "test")
}

// module is every package that is built, from its export data; so a type is one
// and the same in all of them.
type module struct {
	packages []listed
	files    *token.FileSet
	importer types.Importer
	used     map[string]bool      // keys of objects
	tested   map[string]bool      // "path name" of what a test in another folder selects
	group    map[string]token.Pos // of constants that are declared together, by key
	written  map[string]bool      // files that no program generated
	wanted   []*types.Interface
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
		if !p.counted() {
			continue
		}
		names, err := m.exported(p.ImportPath)
		if err != nil {
			return err
		}
		if count := m.count(names); count > most {
			large++
			fmt.Fprintf(out, "%s exports %d names, more than %d\n", p.ImportPath, count, most)
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

// count returns how many of the exported names count: no methods, and none that is excused.
func (m *module) count(names []types.Object) (count int) {
	for _, o := range names {
		f, ok := o.(*types.Func)
		if isMethod := ok && f.Signature().Recv() != nil; !isMethod && !m.excused(o) {
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

// read notes what one of our packages uses of others, and every interface that
// something may have to satisfy.
func (m *module) read(p listed) error {
	if !p.ours() {
		if p.ImportPath == "unsafe" || strings.Contains("/"+p.ImportPath, "/internal/") || strings.HasPrefix(p.ImportPath, "vendor/") {
			return nil
		}
		pkg, err := m.importer.Import(p.ImportPath)
		if err != nil {
			return err
		}
		for _, name := range pkg.Scope().Names() {
			m.want(pkg.Scope().Lookup(name).Type())
		}
		return nil
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

// test notes the names that a test selects from the packages that it imports. It compares only
// names: tests are not type-checked.
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

// hold marks a type as used where another package has a value of it.
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

// enumerations notes which constants are declared together. One that is used stands
// for all.
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

func (m *module) want(t types.Type) {
	if t == nil {
		return
	}
	if i, ok := t.Underlying().(*types.Interface); ok && i.NumMethods() > 0 && !slices.Contains(m.wanted, i) {
		m.wanted = append(m.wanted, i)
	}
}

// markMethods marks the methods by which our types satisfy interfaces.
func (m *module) markMethods() error {
	for _, p := range m.packages {
		if !p.counted() {
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

// exported lists what a package exports, methods with their types, as far as a person
// wrote it.
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
			if f.Exported() && f.Name() != "Unwrap" { // errors finds it by its name
				all = append(all, f)
			}
		}
	}
	return all, nil
}

// ofUsedType reports whether o is a constant of a type of ours that others use.
func (m *module) ofUsedType(o types.Object) bool {
	c, ok := o.(*types.Const)
	if !ok {
		return false
	}
	named, ok := c.Type().(*types.Named)
	return ok && m.used[key(named.Obj())]
}

// excused reports whether o is a constant of an enumeration, or an error.
func (m *module) excused(o types.Object) bool {
	if m.group[key(o)].IsValid() {
		return true
	}
	v, ok := o.(*types.Var)
	return ok && types.Identical(v.Type(), types.Universe.Lookup("error").Type())
}

// key names an object the same in every package that uses it.
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
