package pyenv

import (
	"slices"
	"strings"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/spec"
)

// Distribution is the name of the package that a module comes in, for modules whose
// names an index does not know, or knows as something else: "cv2" is
// "opencv-python-headless". "" is any other module.
func Distribution(module string) string { return distributions[module] }

// distributions are what an agent will plausibly import. Some of the names exist on
// the public index as empty or as other packages, so that asking for them would
// install what nobody means.
var distributions = map[string]string{
	"attr": "attrs", "bs4": "beautifulsoup4", "Crypto": "pycryptodome", "cv2": "opencv-python-headless",
	"dateutil": "python-dateutil", "docx": "python-docx", "docxtpl": "docxtpl", "dotenv": "python-dotenv",
	"fitz": "pymupdf", "fpdf": "fpdf2", "jose": "python-jose", "jwt": "pyjwt", "magic": "python-magic",
	"OpenSSL": "pyopenssl", "pdfminer": "pdfminer-six", "PIL": "pillow", "pptx": "python-pptx",
	"pypdfium2": "pypdfium2", "serial": "pyserial", "skimage": "scikit-image", "sklearn": "scikit-learn",
	"usb": "pyusb", "win32com": "pywin32", "yaml": "pyyaml", "zmq": "pyzmq",
}

// Find returns the package of a list that a name means: a module of it, its own name
// in whatever spelling, or the name under which it is mostly looked for.
func Find(list []Package, name string) (Package, bool) {
	at := slices.IndexFunc(list, func(p Package) bool { return slices.Contains(p.Modules, name) })
	if at < 0 {
		normal := spec.NormalizeName(strings.ReplaceAll(name, "_", "-"))
		at = slices.IndexFunc(list, func(p Package) bool { return p.Name == normal || p.Name == Distribution(name) })
	}
	if at < 0 {
		return Package{}, false
	}
	return list[at], true
}
