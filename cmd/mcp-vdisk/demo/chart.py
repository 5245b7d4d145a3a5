"""Rainfall of three cities: a table, and a bar chart as an SVG."""
import csv
import os

with open("readings.csv", newline="") as f:
    rows = list(csv.DictReader(f))
cities = [name for name in rows[0] if name != "month"]

print(f"{'city':<10}{'mm a year':>10}{'wettest':>10}{'driest':>10}")
for city in cities:
    mm = {r["month"]: int(r[city]) for r in rows}
    print(f"{city:<10}{sum(mm.values()):>10}{max(mm, key=mm.get):>10}{min(mm, key=mm.get):>10}")

W, H, LEFT, TOP = 720, 360, 50, 40
colours = ["#33658a", "#f6ae2d", "#758e4f"]
top = max(int(r[c]) for r in rows for c in cities)
step = (W - LEFT - 20) / len(rows)
bar = step * 0.8 / len(cities)


def y(mm):
    return TOP + (H - TOP - 40) * (1 - mm / top)


parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {W} {H}" font-family="sans-serif" font-size="12">',
         f'<rect width="{W}" height="{H}" fill="white"/>',
         f'<text x="{LEFT}" y="24" font-size="16">Rainfall, mm a month</text>']
for mm in range(0, top + 1, 50):
    parts.append(f'<path d="M{LEFT} {y(mm):.1f}H{W - 20}" stroke="#ddd"/>'
                 f'<text x="{LEFT - 8}" y="{y(mm) + 4:.1f}" text-anchor="end" fill="#666">{mm}</text>')
for i, r in enumerate(rows):
    x = LEFT + i * step + step * 0.1
    for j, c in enumerate(cities):
        mm = int(r[c])
        parts.append(f'<rect x="{x + j * bar:.1f}" y="{y(mm):.1f}" width="{bar - 1:.1f}" '
                     f'height="{y(0) - y(mm):.1f}" fill="{colours[j]}"/>')
    parts.append(f'<text x="{x + step * 0.4:.1f}" y="{H - 22}" text-anchor="middle">{r["month"]}</text>')
for j, c in enumerate(cities):
    parts.append(f'<rect x="{W - 290 + j * 95}" y="14" width="11" height="11" fill="{colours[j]}"/>'
                 f'<text x="{W - 274 + j * 95}" y="24">{c}</text>')
parts.append("</svg>")

os.makedirs("out", exist_ok=True)
with open("out/rainfall.svg", "w") as f:
    f.write("\n".join(parts))
