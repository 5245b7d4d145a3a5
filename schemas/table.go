package schemas

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

//go:embed *.json
var files embed.FS

var order = []string{"write_file", "read_file", "list_files", "make_directory", "delete_file", "run_script", "python_env"}

// table is the one piece of global state: the embedded files, read and compiled at first use. A file that does not
// compile is a fault of the build, not of a call, so it panics; a test calls it.
var table = sync.OnceValue(func() map[string]*entry {
	t := make(map[string]*entry, len(order))
	for _, name := range order {
		e, err := load(name)
		if err != nil {
			panic(fmt.Sprintf("schemas: %s: %v", name, err))
		}
		t[name] = e
	}
	return t
})

// entry is one tool's file, ready to judge.
type entry struct {
	def      Def
	names    []string // argument names, sorted
	props    map[string]property
	required []string
	judge    judge
}

// property is what error texts and conversions need to know of one argument. minimum and maximum are kept as written.
type property struct {
	Type    string      `json:"type"`
	Enum    []string    `json:"enum"`
	Minimum json.Number `json:"minimum"`
	Maximum json.Number `json:"maximum"`
	Items   *property   `json:"items"`
	limit   limit
}

// limit bounds what the schema subset cannot: items of an array, characters of a string or of each item. 0 is no limit.
type limit struct {
	Items      int `json:"items"`
	Characters int `json:"characters"`
}

// file is the form of NAME.json.
type file struct {
	Name        string           `json:"name"`
	Description string           `json:"description"`
	Annotations Annotations      `json:"annotations"`
	Mutates     bool             `json:"mutates"`
	InputSchema json.RawMessage  `json:"inputSchema"`
	Limits      map[string]limit `json:"limits"`
}

func load(name string) (*entry, error) {
	raw, err := files.ReadFile(name + ".json")
	if err != nil {
		return nil, err
	}
	var f file
	if err := unmarshalStrict(raw, &f); err != nil {
		return nil, err
	}
	if f.Name != name {
		return nil, fmt.Errorf("the file names itself %q", f.Name)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, f.InputSchema); err != nil {
		return nil, err
	}
	var s struct {
		Properties map[string]property `json:"properties"`
		Required   []string            `json:"required"`
	}
	if err := json.Unmarshal(f.InputSchema, &s); err != nil {
		return nil, err
	}
	for arg, l := range f.Limits {
		p, ok := s.Properties[arg]
		if !ok {
			return nil, fmt.Errorf("limits name %q, which is no argument", arg)
		}
		p.limit = l
		s.Properties[arg] = p
	}
	j, err := compile(name, f.InputSchema, f.Limits)
	if err != nil {
		return nil, err
	}
	return &entry{
		def: Def{Name: f.Name, Description: f.Description, Schema: compact.Bytes(),
			Annotations: f.Annotations, Mutates: f.Mutates},
		names: slices.Sorted(maps.Keys(s.Properties)), props: s.Properties, required: s.Required, judge: j,
	}, nil
}

func unmarshalStrict(raw []byte, to any) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	return dec.Decode(to)
}

// judge holds a compiled schema. Nothing outside this file knows which library that is.
type judge struct{ schema *jsonschema.Schema }

// complaint is one fault the schema found: the keyword that failed, and the keys and indices that lead to the value which
// failed it.
type complaint struct {
	at      []string
	keyword string
}

// compile adds the file's limits to the published schema as the keywords that the published subset does without.
func compile(name string, schema json.RawMessage, limits map[string]limit) (judge, error) {
	var doc map[string]any
	if err := json.Unmarshal(schema, &doc); err != nil {
		return judge{}, err
	}
	for arg, l := range limits {
		p := doc["properties"].(map[string]any)[arg].(map[string]any)
		if l.Items > 0 {
			p["maxItems"] = l.Items
		}
		if items, ok := p["items"].(map[string]any); ok {
			p = items
		}
		if l.Characters > 0 {
			p["maxLength"] = l.Characters
		}
	}
	// The library wants what its own decoder makes: numbers that are exact.
	whole, err := json.Marshal(doc)
	if err != nil {
		return judge{}, err
	}
	exact, err := jsonschema.UnmarshalJSON(bytes.NewReader(whole))
	if err != nil {
		return judge{}, err
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(embedded{})
	url := "https://mcp-vdisk.invalid/schemas/" + name
	if err := c.AddResource(url, exact); err != nil {
		return judge{}, err
	}
	s, err := c.Compile(url)
	return judge{s}, err
}

// embedded keeps the library from opening file: references, which it would take from the host's disk.
type embedded struct{}

func (embedded) Load(url string) (any, error) {
	return nil, fmt.Errorf("schema %q is not embedded", url)
}

// complaints judges decoded arguments (numbers as json.Number, each short enough to be expanded). Their order is random.
func (j judge) complaints(args map[string]any) []complaint {
	err := j.schema.Validate(args)
	if err == nil {
		return nil
	}
	var ve *jsonschema.ValidationError
	if !errors.As(err, &ve) {
		return []complaint{{}} // its other errors are about values and schemas that cannot occur here
	}
	return leaves(nil, ve)
}

func leaves(to []complaint, ve *jsonschema.ValidationError) []complaint {
	if len(ve.Causes) == 0 {
		c := complaint{at: ve.InstanceLocation}
		if path := ve.ErrorKind.KeywordPath(); len(path) > 0 { // those of references and of false have none
			c.keyword = path[len(path)-1]
		}
		return append(to, c)
	}
	for _, cause := range ve.Causes {
		to = leaves(to, cause)
	}
	return to
}
