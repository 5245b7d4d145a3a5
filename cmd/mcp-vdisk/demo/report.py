"""Turns report.md into a Word document; an image of a CSV file becomes a chart."""
import csv
import io
import re

import docx
import matplotlib.pyplot as plt
from docx.shared import Cm


def chart(path, title):
    with open(path, newline="") as f:
        rows = list(csv.DictReader(f))
    fig, ax = plt.subplots(figsize=(7, 3.2))
    for name in list(rows[0])[1:]:
        ax.plot([r["month"] for r in rows], [int(r[name]) for r in rows], marker="o", label=name)
    ax.set_title(title)
    ax.legend()
    png = io.BytesIO()
    fig.savefig(png, dpi=120, bbox_inches="tight")
    return png


def runs(paragraph, text):
    for i, part in enumerate(re.split(r"\*\*", text)):
        paragraph.add_run(part).bold = i % 2 == 1


doc = docx.Document()
with open("report.md") as f:
    for line in f.read().splitlines():
        if image := re.fullmatch(r"!\[(.*)\]\((.*)\)", line):
            doc.add_picture(chart(image[2], image[1]), width=Cm(15))
        elif heading := re.fullmatch(r"(#+) (.*)", line):
            doc.add_heading(heading[2], level=len(heading[1]) - 1)
        elif line.startswith("- "):
            runs(doc.add_paragraph(style="List Bullet"), line[2:])
        elif line:
            runs(doc.add_paragraph(), line)
doc.save("out/report.docx")

again = docx.Document("out/report.docx")
print(f"{len(again.paragraphs)} paragraphs, {len(again.inline_shapes)} chart")
