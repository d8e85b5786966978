"""The scripts that bash, zsh and fish run, and that ask mlpkit for candidates."""

from __future__ import annotations

# The scripts run the mlpkit of the line itself, so that each environment answers for its own
# plugins. A candidate that ends in one of =./ is to be continued and gets no space.
BASH = """\
_mlpkit() {
    local candidate goes_on='[=./]$' quoted="^['\\"]"
    COMPREPLY=()
    while IFS= read -r candidate; do
        [[ $candidate =~ $goes_on || ${COMP_WORDS[COMP_CWORD]} =~ $quoted ]] || candidate+=" "
        COMPREPLY+=("$candidate")
    done < <(COMP_LINE="${COMP_LINE:0:$COMP_POINT}" COMP_WORDBREAKS="$COMP_WORDBREAKS" \\
        "${1/#\\~/$HOME}" completion query 2>/dev/null </dev/null)
}
complete -o nospace -F _mlpkit mlpkit
"""
ZSH = """\
#compdef mlpkit
_mlpkit() {
    local -a found ends goes_on
    found=("${(@f)$("${(Q)~words[1]}" completion query -- \\
        "${(@Q)words[1,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null </dev/null)}")
    goes_on=(${(M)found:#*[=./]})
    ends=(${found:#*[=./]})
    (( $#goes_on )) && compadd -S '' -a goes_on
    (( $#ends )) && compadd -a ends
    (( $#goes_on + $#ends ))
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }
compdef _mlpkit mlpkit
"""
FISH = """\
function __mlpkit_complete
    set -l words (commandline --tokenize --current-process --cut-at-cursor)
    set -l current (commandline --current-token --cut-at-cursor)
    $words[1] completion query -- $words "$current" 2>/dev/null </dev/null
end
complete --command mlpkit --no-files --arguments '(__mlpkit_complete)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
