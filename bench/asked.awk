# Behind each line of `make bench` of which a bound is asked: the bound, and whether it is met. A bound is of
# the value of a result ("value"), of its ratio to its limit ("ratio"), or of the share of a call ("share").
# The first row that fits a line counts.

function ask(title, name, what, least, bound)
{
    n++
    of_title[n] = title
    of_name[n] = name
    of_what[n] = what
    of_least[n] = least
    of_bound[n] = bound
}

function number_behind(word,    i)
{
    for (i = 1; i < NF; i++)
        if ($i == word)
            return $(i + 1)
    return ""
}

# The value: what stands before the unit, behind the result's name.
function value(name,    rest)
{
    rest = substr($0, index($0, name) + length(name))
    split(rest, part, " ")
    return part[1]
}

BEGIN {
    step = "step / products alone"
    ask("^gpt2 .*T=64 f32 ", step, "value", 0, 1.4)
    ask("^gpt2 .*T=64 bf16 ", step, "value", 0, 2.0)
    ask("llama.*T=64 f32 ", step, "value", 0, 1.4)
    ask("llama.*T=64 bf16 ", step, "value", 0, 2.0)
    ask("^demo ", step, "value", 0, 1.8)
    ask(" f32 ", step, "value", 0, 1.15)
    ask(" bf16 ", step, "value", 0, 1.35)
    ask("", "products alone, by the ways taken", "ratio", 1, 0.95)
    ask("flash_attention[a-z_]* \\([a-z_0-9]*\\) f32", "", "share", 1, 0.5)
    ask("flash_attention[a-z_]* \\([a-z_0-9]*\\) bf16", "", "share", 1, "0.35 with AMX")
}

{
    said = ""
    for (i = 1; i <= n && said == ""; i++) {
        if ((of_title[i] != "" && $0 !~ of_title[i]) || (of_name[i] != "" && !index($0, of_name[i])))
            continue
        # of a call the columns are ms/step, calls, us/call, rate, its unit, share
        found = of_what[i] == "value" ? value(of_name[i]) : of_what[i] == "ratio" ? number_behind("ratio") : $6
        if (found !~ /^[0-9.]/)
            continue
        good = of_least[i] ? found + 0 >= of_bound[i] + 0 : found + 0 <= of_bound[i] + 0
        said = sprintf("  (asked %s %s: %s)", of_least[i] ? ">=" : "<=", of_bound[i], good ? "met" : "MISSED")
    }
    print $0 said
    fflush()
}
