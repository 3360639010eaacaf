"""Long texts of our own, for prompts whose prefill takes several chunks and blocks."""

from __future__ import annotations

HARBOUR = """\
The harbour of Lindvik lies at the end of a narrow bay, and for most of the year the wind decides who may enter it. The \
oldest page in the harbour book is from a spring in which the ice had stayed until May. A single line says that eleven \
boats came in on one day, that the bell was rung for each of them, and that the ringer was paid in dried fish. Nobody knows \
who wrote it, because the first harbour master signed with a drawing of a gull.

The second harbour master was Agda Holm, who could not swim and was proud of it. She held that people who trust the water \
stop looking at it. In her years the breakwater was built from the stones of a church that had never been finished. Farmers \
brought the stones on sledges in winter, forty to fifty on a good day, and she counted them herself from a chair that was \
tied to the crane. When the breakwater was done it was nine stones short of what had been paid for, and for the rest of her \
life she asked every farmer she met, politely, whether he remembered nine stones.

After her came a long time in which little was written. A storm took the roof of the customs house and left the roof, almost \
whole, in a field of barley, where it was used as a barn for twenty years. The bell cracked and was recast with too much \
tin, so that it sounded like a pan; strangers laughed at it, and the town would not have another. The fish moved north, then \
south again. A company from the capital wanted to make the bay into a port for grain, measured it for two summers, and went \
away because the ships it had in mind would have had to turn around in the market square.

The light came late. Until then a lamp was hung in the window of the bakery, which was lit before dawn in any case, and the \
bakers were paid for it by the fishing families, each of which gave one coin for every member who went to sea. The list of \
these coins is the best record of the town that there is. It shows two brothers who paid together for thirty-one years and \
then apart for one; it shows a widow who went on paying for her husband until she died, and a boy who paid for himself from \
the age of nine, in halfpennies. When the lighthouse was opened, with a mayor and a brass band, the bakers put their lamp \
into the window once more in the same night, and several boats are said to have steered by it out of courtesy.

The lighthouse was kept by three families in turn, each for four months, since no family wanted the winters only. Their logs \
are dull in the way of good logs. Wind, sight, oil, ships. But at the end of each four months the leaving keeper wrote a \
sentence to the one who came, and these sentences were never about the weather. "The third stair from the top is tired." \
"There is a cat now; I did not bring it." "If you sing, the glass hums at the second verse." "I have left you the good \
chair, and expect it back." In one year the same sentence stands three times, in three hands: "All quiet. I do not like it."

The railway reached Lindvik when the fish had already gone for good. It brought people who wanted to look at the sea and had \
no wish to be on it, and the town learned to sell them coffee. The warehouses became inns, the inns became larger, and the \
customs house, with its roof brought back from the barley, became a museum with one room. In the room hang the chair from \
the crane, the cracked clapper of the bell and a map on which somebody has marked with pins the places where the nine stones \
may be. There are more than nine pins. Visitors ask which of them are the right ones, and the woman at the desk says that \
the town has not decided yet.

Today the harbour has room for sixty boats, and in summer all the places are taken. The harbour master has a screen on which \
every boat is a small green arrow, and a telephone that is answered in four languages. The bell is still rung, once, at noon \
on the day when the last ice leaves the bay. It still sounds like a pan. Children who grow up in Lindvik and move away say \
that it is the sound they miss most, and that they can never explain why to anybody who has heard it."""

WORKSHOP = """\
Minutes of the meeting on the bread machine, held in the workshop. Present were Ilse, who repairs ovens; Tarek, who writes \
the control program; Noor, who bakes; and Pim, who keeps the accounts and wrote this down.

Noor began with the complaint that had brought everybody together. The machine bakes well in the morning and badly in the \
evening, from the same flour, the same water and the same recipe. In the morning the loaves are even; in the evening one in \
six has a hollow under the crust. She had kept a list for three weeks. It had a hundred and forty-four loaves on it, and \
twenty-two with a hollow, of which nineteen were from after four in the afternoon. She did not want to hear again that the \
dough was at fault, because she had baked dough from one bowl at both times.

Ilse said that she had believed in the heating coil until Tuesday. A coil that ages gets hot unevenly, and the mains voltage \
is lower in the evening when the neighbourhood cooks. So she measured. The voltage fell by four volts, which changes the \
power by less than four per cent, and the thermostat makes up for that within a minute. She exchanged the coil all the same, \
since she had one lying there, and the next evening there were three hollows in eighteen loaves. It was not the coil.

Tarek asked how many loaves were in the oven at once. In the morning, said Noor, the first batch is always full: twelve. \
During the day it depends on what is sold. In the evening she bakes what is missing, four or seven or two. Tarek said \
nothing for a while, and then that he might owe everybody an apology. The program chooses a heating curve by the weight on \
the tray. Above ten kilograms it takes the long curve, below it the short one, and the short one was written for rolls. With \
seven loaves the tray weighs about nine and a half. The same loaf is baked in another way according to who its neighbours \
are, and no one who looks at the loaf alone can find out why.

Pim asked why it was not seen when the machine was tested. Because, said Tarek, every test had been done with a full tray or \
with a single loaf, and a single loaf had been baked by the short curve so often that its hollow was called the sample \
hollow and drawn into the handbook. Ilse laughed at this more than was polite. Noor did not laugh; she asked whether all \
trays could be baked by the long curve. They could, said Tarek, and it would cost electricity: the long curve needs a third \
more for a small tray. Pim calculated on the back of an invoice that this was about eleven coins a day, and that a hollow \
loaf is sold at half price, so that three hollow loaves a day cost more than the curve does.

Ilse then proposed something else. The loaves do not need the long curve; they need one and the same. A curve that begins \
like the long one and ends early if the crust is done would serve twelve loaves and two, at nearly the cost of the short \
one. It must only not look at the weight. It may look at the loaf: at the colour of the crust, by the small camera that had \
been built in for the advertisement and was never used. Tarek thought that he could do it in a week. Noor gave him five days \
and a list of the loaves by which she would judge it: one alone, two, seven, eleven, twelve, and seven beside a tray of \
rolls, each of them in the morning and in the evening, from one bowl.

It was decided: first, that the long curve is used for all trays until the new one is there. Second, that the new one is \
tested by Noor's list, and that every test says how many loaves were in the oven, since a test that does not say it tests \
nothing. Third, that the drawing of the sample hollow is taken out of the handbook. Fourth, on Ilse's motion, that the old \
coil is hung on the wall, with the date, as a reminder that a part which can be exchanged is not for that reason to blame. \
Pim voted against the fourth, because of the nail, and was outvoted. The meeting ended with bread, of which one loaf had a \
hollow; it was eaten first."""
