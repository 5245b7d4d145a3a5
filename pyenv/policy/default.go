package policy

import "strings"

// Default is the catalog of an operator who has made none: what people ask for when they
// work with tables, texts and figures, with what that needs. It is a starting point and
// no statement about the projects.
func Default() Catalog {
	c := Catalog{
		Schema:       catalogSchema,
		Rev:          1,
		Deny:         []Denied{},
		Caps:         Caps{WheelBytes: 100e6, ClosureBytes: 250e6, Files: 60_000},
		CooldownDays: 7,
		IndexHosts:   []string{},
		StartupCode:  StartupAsk,
	}
	for _, name := range strings.Fields(asked + needed) {
		c.Allow = append(c.Allow, Entry{Name: name, Spec: versions[name]})
	}
	if err := c.sortLists(); err != nil {
		panic(err) // a name is in both lists
	}
	return c
}

const asked = `
	beautifulsoup4 docxtpl duckdb html5lib jieba jinja2 jsonschema markdownify networkx odfpy pandas plotly polars
	pyarrow pydantic pymupdf pypinyin python-dateutil pytz pyyaml qrcode rapidfuzz regex rich scikit-learn scipy
	seaborn statsmodels sympy tabulate tqdm tzdata wordcloud xlrd
`

// needed are the packages that those above need and the base does not have, as pip
// resolved them in November 2026. Without them the list would be one of questions.
const needed = `
	annotated-types attrs cloudpickle formulaic interface-meta joblib jsonschema-specifications markdown-it-py
	markupsafe mdurl mpmath narwhals patsy polars-runtime-32 pydantic-core pygments referencing rpds-py six
	soupsieve threadpoolctl typing-inspection webencodings wrapt
`

// versions are the exceptions from "every release". pymupdf 2 needs an inference
// runtime and a layout model with a licence of its own, about which to ask.
var versions = map[string]string{"pymupdf": "<2"}
